"""Rows as flat arrays, and which log-probs of a pack are wanted for which (node, row).

Loss and comparison are attached to rows, not to nodes: two rows that share a sampled node with different masks or
advantages both count; the log-prob itself is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openforgerl.errors import TrainerError
from openforgerl.records import MaskReason, TokenRow
from openforgerl.trainers.packing import Ints, Pack

Mask = NDArray[np.bool_]


class RowTable:
    """The tokens of rows, one after the other; a *place* is an index into that."""

    def __init__(self, rows: Sequence[TokenRow], temperatures: Sequence[float] | None = None) -> None:
        """Raises TrainerError for a row with images: trained on its ids alone, the policy would be updated blind."""
        for row in rows:
            if row.images:
                raise TrainerError(f"row {row.session_id}/{row.branch} has images; the local trainer reads text only")
        self.rows = rows
        self.temperatures = np.asarray(temperatures or [row.temperature for row in rows], dtype=np.float32)
        lengths = np.asarray([len(row.token_ids) for row in rows], dtype=np.int64)
        self.starts = np.cumsum(lengths) - lengths
        self.row_of: Ints = np.repeat(np.arange(len(rows)), lengths)
        self.behaviour: NDArray[np.float64] = _flat([row.logprobs for row in rows]).astype(np.float64)
        self.trained: Mask = _flat([row.loss_mask for row in rows]) == 1
        versions = _flat([row.policy_versions for row in rows])
        changed = _flat([[reason is MaskReason.CHANGED_DISTRIBUTION for reason in row.mask_reasons] for row in rows])
        self.comparable: Mask = (versions != -1) & (changed == 0)
        """Sampled tokens whose recorded log-prob is the policy's, whatever their mask."""
        self.predicted: Mask = np.ones(len(self.row_of), dtype=np.bool_)
        """All tokens but the first of each row."""
        self.predicted[self.starts[lengths > 0]] = False

    def with_starts(self) -> Iterator[tuple[TokenRow, int]]:
        return zip(self.rows, self.starts.tolist(), strict=True)

    def spread(self, values: Sequence[float]) -> NDArray[np.float64]:
        """A value per row -> one per token."""
        return np.asarray(values, dtype=np.float64)[self.row_of]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """U distinct targets (node, temperature), and N terms sorted by target: the log-prob at `places[i]` is that of
    target `targets[i]`."""

    nodes: Ints
    temperatures: NDArray[np.float32]
    places: Ints
    targets: Ints

    def chunks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """(targets, terms) of at most `size` targets, in order."""
        for start in range(0, len(self.nodes), size):
            stop = min(start + size, len(self.nodes))
            first, last = np.searchsorted(self.targets, [start, stop])
            yield slice(start, stop), slice(int(first), int(last))


def collect(pack: Pack, table: RowTable, wanted: Mask) -> Terms:
    """Terms of the rows of `pack` at the places where `wanted` is true (never at the first token of a row)."""
    places, nodes = [], []
    for row, path in sorted(pack.paths.items()):
        start = int(table.starts[row])
        inside = np.flatnonzero(wanted[start : start + len(path)])
        places.append(start + inside)
        nodes.append(path[inside])
    place, node = np.concatenate(places), np.concatenate(nodes)
    values, kind = np.unique(table.temperatures, return_inverse=True)
    keys, target = np.unique(node * len(values) + kind[table.row_of[place]], return_inverse=True)
    order = np.argsort(target, kind="stable")
    return Terms(
        nodes=keys // len(values),
        temperatures=values[keys % len(values)],
        places=place[order],
        targets=target[order],
    )


def _flat(parts: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts] or [np.empty(0)])
