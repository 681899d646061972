"""One forward (and backward) over packs: log-probs of wanted tokens, gradients accumulated chunk by chunk.

A loss is a sum over tokens, so each chunk of logits runs backward into its features and is freed; the features'
gradient then runs through the body once. Nothing here knows rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openforgerl.trainers.local_model import PackedModel
from openforgerl.trainers.local_terms import Mask, RowTable, Terms, collect
from openforgerl.trainers.packing import Ints, Pack


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Some tokens, by their places in the table, with their log-probs and the entropy of the distribution there."""

    places: Ints
    logprobs: Tensor
    """With gradient in `backward`."""
    entropies: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """A model about to run over the packs of a table's rows."""

    model: PackedModel
    table: RowTable
    packs: Sequence[Pack]
    chunk: int

    def sizes(self) -> dict[str, float]:
        """Counts for the metrics of a step."""
        return {
            "rows_trained": float(len(self.table.rows)),
            "tokens_trained": float(self.table.trained.sum()),
            "tokens_in_rows": float(len(self.table.row_of)),
            "tokens_forwarded": float(sum(len(pack) for pack in self.packs)),
            "packs": float(len(self.packs)),
        }

    def forward(self, wanted: Mask, see: Callable[[Part], None]) -> None:
        """Shows every wanted token once; no gradient."""
        with torch.no_grad():
            for pack in self.packs:
                terms = collect(pack, self.table, wanted & self.table.predicted)
                if len(terms.nodes):
                    self._show(pack, terms, self._features(pack, terms), see)

    def backward(
        self, trained: Mask, loss: Callable[[Part], Tensor], watched: Mask, see: Callable[[Part], None]
    ) -> None:
        """Adds the gradient of the sum of `loss` over all parts of the trained tokens; shows the watched ones."""
        for pack in self.packs:
            learn = collect(pack, self.table, trained)
            watch = collect(pack, self.table, watched & ~trained & self.table.predicted)
            if not len(learn.nodes):
                continue
            features = self._features(pack, learn, watch)
            split = len(learn.nodes)
            leaf = features[:split].detach().requires_grad_()
            for targets, where in learn.chunks(self.chunk):
                loss(self._part(pack, learn, targets, where, leaf[targets])).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                self._show(pack, watch, features[split:].detach(), see)
            features[:split].backward(leaf.grad)  # type: ignore[no-untyped-call]

    def _show(self, pack: Pack, terms: Terms, features: Tensor, see: Callable[[Part], None]) -> None:
        for targets, where in terms.chunks(self.chunk):
            see(self._part(pack, terms, targets, where, features[targets]))

    def _features(self, pack: Pack, *terms: Terms) -> Tensor:
        nodes = np.concatenate([part.nodes for part in terms])
        return self.model.features(pack, torch.from_numpy(pack.parents[nodes]))

    def _part(self, pack: Pack, terms: Terms, targets: slice, where: slice, features: Tensor) -> Part:
        ids, temperatures = pack.ids[terms.nodes[targets]], terms.temperatures[targets]
        scores = self.model.score(features, torch.from_numpy(ids), torch.from_numpy(temperatures))
        inside = torch.from_numpy(terms.targets[where] - targets.start)
        return Part(places=terms.places[where], logprobs=scores.logprobs[inside], entropies=scores.entropies[inside])
