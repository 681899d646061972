"""The two losses of the local trainer as objectives over parts of a pass, with what they saw on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openforgerl.errors import TrainerError
from openforgerl.records import TokenRow, TrainingRow
from openforgerl.trainers import losses
from openforgerl.trainers.local_config import LocalTrainerConfig
from openforgerl.trainers.local_pass import Part
from openforgerl.trainers.local_receipts import Comparison
from openforgerl.trainers.local_terms import Mask, RowTable


class SftObjective:
    """Mean negative log-likelihood of the trained tokens, at temperature 1."""

    def __init__(self, rows: Sequence[TokenRow]) -> None:
        self.table = RowTable(rows, [1.0] * len(rows))
        self._tokens = int(self.table.trained.sum())
        if not self._tokens:
            raise TrainerError(f"nothing to train: {len(rows)} rows without a token of mask 1")
        _refuse(self.table, self.table.trained & ~self.table.predicted, "mask 1 but nothing before it")
        self._losses: list[float] = []

    def __call__(self, part: Part) -> Tensor:
        loss = losses.nll_loss(part.logprobs, torch.ones(len(part.places), dtype=torch.bool), self._tokens)
        self._losses.append(loss.item())
        return loss

    def metrics(self) -> dict[str, float]:
        return {"loss": math.fsum(self._losses)}


class PolicyObjective:
    """The clipped policy loss of training rows; proximal is the policy of this very pass."""

    def __init__(self, rows: Sequence[TrainingRow], denominator: float, config: LocalTrainerConfig) -> None:
        if not rows:
            raise TrainerError("nothing to train: no row of the batch has weight and a token of mask 1")
        if not (math.isfinite(denominator) and denominator > 0):
            raise TrainerError(f"denominator {denominator} of the batch is not a positive number")
        self.table = RowTable([row.row for row in rows])
        self.comparison = Comparison(self.table)
        self._advantages = self.table.spread([row.advantage for row in rows])
        self._weights = self.table.spread([row.weight for row in rows])
        self._denominator, self._config = denominator, config
        self._terms: list[losses.PolicyTerms] = []
        self._losses: list[float] = []
        self._entropies: list[Tensor] = []
        self._check(rows)

    def __call__(self, part: Part) -> Tensor:
        places = part.places
        terms = losses.policy_terms(
            current=part.logprobs,
            proximal=part.logprobs.detach(),
            behaviour=_tensor(self.table.behaviour[places]),
            advantage=_tensor(self._advantages[places]),
            mask=torch.ones(len(places), dtype=torch.bool),
            clip_low=self._config.clip_low,
            clip_high=self._config.clip_high,
            importance_cap=self._config.importance_cap,
        )
        loss = losses.policy_loss(terms, _tensor(self._weights[places]), self._denominator)
        self._terms.append(terms)
        self._losses.append(loss.item())
        self._entropies.append(part.entropies)
        self.watch(part)
        return loss

    def watch(self, part: Part) -> None:
        """Compares sampled tokens with the engine's log-probs, trained or not."""
        self.comparison.add(part.places, part.logprobs.detach())

    def metrics(self) -> dict[str, float]:
        every = losses.join(self._terms)
        return {
            "loss": math.fsum(self._losses),
            "entropy": torch.cat(self._entropies).double().mean().item(),
            **losses.policy_metrics(every, self._config.importance_cap),
            **self.comparison.metrics(),
        }

    def _check(self, rows: Sequence[TrainingRow]) -> None:
        known = np.isfinite(self.table.behaviour) & self.table.comparable
        _refuse(self.table, self.table.trained & ~known, "mask 1 but no log-prob of a policy")
        _refuse(self.table, self.table.trained & ~self.table.predicted, "mask 1 but nothing before it")
        for row in rows:
            if not (math.isfinite(row.advantage) and math.isfinite(row.weight)):
                name = f"{row.row.session_id}/{row.row.branch}"
                raise TrainerError(f"row {name}: advantage {row.advantage}, weight {row.weight}")


def _refuse(table: RowTable, bad: Mask, what: str) -> None:
    """Raises TrainerError that names the first bad token."""
    if bad.any():
        place = int(bad.argmax())
        index = int(table.row_of[place])
        row, position = table.rows[index], place - int(table.starts[index])
        raise TrainerError(f"row {row.session_id}/{row.branch}: token {position} has {what}")


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
