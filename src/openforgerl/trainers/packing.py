"""Rows -> packed sequences in which every shared prefix stands once: a forest of tokens, position = depth.

Pure numpy. The result does not depend on the order of the rows. Exact for models whose only coupling between tokens
is full attention under the ancestor mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Slices = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Nodes [start, stop) that one row adds; `context`: the node ranges that stand before them on their path."""

    start: int
    stop: int
    context: Slices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pack:
    """One sequence of T nodes for the model."""

    ids: Ints
    positions: Ints
    """Depth of each node."""
    parents: Ints
    """Node whose logits predict this one; -1 at a root."""
    branches: tuple[Branch, ...]
    """In order, together all nodes."""
    paths: Mapping[int, Ints]
    """Index of a packed row -> its nodes, from the root on."""

    def __len__(self) -> int:
        return len(self.ids)


def pack(rows: Sequence[Sequence[int]], *, budget: int = 4096, share: bool = True) -> list[Pack]:
    """Packs of at most `budget` nodes, or 5/4 of their longest row; a prefix that this cuts is repeated.

    With `share` false every row is a pack. Rows of one pack have their first id in common.
    """
    arrays = {index: np.asarray(row, dtype=np.int64) for index, row in enumerate(rows) if len(row)}
    order = sorted(arrays, key=lambda index: (tuple(rows[index]), index))
    packs: list[_Growing] = []
    for index in order:
        if not (packs and share and packs[-1].accepts(arrays[index], budget)):
            packs.append(_Growing())
        packs[-1].add(index, arrays[index])
    return [growing.finish() for growing in packs]


class _Growing:
    """A pack to which rows are added in lexicographic order, so that each shares most with the one before it."""

    def __init__(self) -> None:
        self._size = 0
        self._longest = 0
        self._last: Ints = np.empty(0, dtype=np.int64)
        self._slices: Slices = ()
        self._branches: list[Branch] = []
        self._ids: list[Ints] = []
        self._paths: dict[int, Ints] = {}

    def accepts(self, row: Ints, budget: int) -> bool:
        shared = common_prefix(self._last, row)
        limit = max(budget, max(self._longest, len(row)) * 5 // 4)
        return shared > 0 and self._size + len(row) - shared <= limit

    def add(self, index: int, row: Ints) -> None:
        shared = common_prefix(self._last, row)
        new = row[shared:]
        self._slices = _cut(self._slices, shared)
        if len(new):
            branch = Branch(start=self._size, stop=self._size + len(new), context=self._slices)
            self._branches.append(branch)
            self._ids.append(new)
            self._slices = _extended(self._slices, branch.start, branch.stop)
            self._size = branch.stop
        self._last, self._longest = row, max(self._longest, len(row))
        self._paths[index] = np.concatenate([np.arange(start, stop) for start, stop in self._slices])

    def finish(self) -> Pack:
        positions, parents = np.empty(self._size, dtype=np.int64), np.empty(self._size, dtype=np.int64)
        for branch in self._branches:
            depth = sum(stop - start for start, stop in branch.context)
            positions[branch.start : branch.stop] = np.arange(depth, depth + branch.stop - branch.start)
            parents[branch.start : branch.stop] = np.arange(branch.start - 1, branch.stop - 1)
            parents[branch.start] = branch.context[-1][1] - 1 if branch.context else -1
        return Pack(
            ids=np.concatenate(self._ids),
            positions=positions,
            parents=parents,
            branches=tuple(self._branches),
            paths=self._paths,
        )


def common_prefix(left: Ints, right: Ints) -> int:
    """How many leading ids two rows share."""
    size = min(len(left), len(right))
    different = left[:size] != right[:size]
    return int(different.argmax()) if different.any() else size


def _cut(slices: Slices, length: int) -> Slices:
    """The first `length` nodes of a path."""
    kept: list[tuple[int, int]] = []
    for start, stop in slices:
        if length <= 0:
            break
        kept.append((start, min(stop, start + length)))
        length -= stop - start
    return tuple(kept)


def _extended(slices: Slices, start: int, stop: int) -> Slices:
    if slices and slices[-1][1] == start:
        return (*slices[:-1], (slices[-1][0], stop))
    return (*slices, (start, stop))
