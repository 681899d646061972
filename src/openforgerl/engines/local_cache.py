"""Keys and values of the rows that are being decoded: one slot a row, written at each row's own position.

Rows of different lengths decode as one batch over the slots [0, rows), sliced to the longest one; no step copies what
is there. Memory of a slot is touched when it is first used, and `fit` keeps what is touched within a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

_BLOCK = 256


class SlotCache(Cache):
    """The cache object that the model's own attention layers call."""

    def __init__(self, *, slots: int, layers: int, heads: int, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        self._shape = (slots, heads, head_dim)
        self._dtype = dtype
        self._layers = layers
        self.clear()
        self._rows: Tensor | slice = slice(0, 0)
        self._at: Tensor | slice = slice(0, 0)
        self._stop = 0

    @property
    def tokens(self) -> int:
        """Positions in memory, padding included."""
        return self._touched * self._capacity

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self._kv = [self._empty(0) for _ in range(self._layers)]
        self._capacity = self._touched = 0

    def fit(self, rows: int, longest: int, limit: int) -> bool:
        """Room for slots [0, rows) of up to `longest` positions each, within `limit` in all; false: impossible.

        Keeps what these slots hold.
        """
        needed = -(-longest // _BLOCK) * _BLOCK
        if rows * needed > limit:
            needed = longest
        if rows * needed > limit:
            return False
        held = max(rows, self._touched) * self._capacity
        wasteful = held > limit // 2 and self._capacity > 2 * needed
        if needed > self._capacity or held > limit or wasteful:
            self._reshape(needed, keep=min(rows, self._touched))
        if rows > self._touched:
            self._touch(rows)
        return True

    def aim_rows(self, positions: Sequence[int]) -> None:
        """The next forward gives one token to each of the first slots, at its position."""
        self._rows = torch.arange(len(positions))
        self._at = torch.tensor(positions)
        self._stop = max(positions) + 1

    def aim_slot(self, slot: int, start: int, stop: int) -> None:
        """The next forward gives one slot the positions [start, stop)."""
        self._rows, self._at, self._stop = slice(slot, slot + 1), slice(start, stop), stop

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by every attention layer with (rows, heads, new positions, dim)."""
        keys, values = self._kv[layer_idx]
        if isinstance(self._rows, slice):
            keys[self._rows, :, self._at] = key_states
            values[self._rows, :, self._at] = value_states
            rows = self._rows
        else:
            keys[self._rows, :, self._at] = key_states[:, :, 0]
            values[self._rows, :, self._at] = value_states[:, :, 0]
            rows = slice(0, len(self._rows))
        return keys[rows, :, : self._stop], values[rows, :, : self._stop]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._stop

    def read(self, slot: int, start: int, stop: int) -> Tensor:
        """A copy of a slot's positions: (layers, keys and values, heads, positions, dim)."""
        return torch.stack([kv[:, slot, :, start:stop] for kv in self._kv])

    def write(self, slot: int, start: int, kept: Tensor) -> None:
        for layer, kv in enumerate(self._kv):
            kv[:, slot, :, start : start + kept.shape[-2]] = kept[layer]

    def move(self, source: int, target: int, length: int) -> None:
        for kv in self._kv:
            kv[:, target, :, :length] = kv[:, source, :, :length]

    def _reshape(self, capacity: int, keep: int) -> None:
        length = min(capacity, self._capacity)
        for layer, old in enumerate(self._kv):
            self._kv[layer] = self._empty(capacity)
            self._kv[layer][:, :keep, :, :length] = old[:, :keep, :, :length]
            # A masked position still meets its key and value, and 0 x NaN is NaN.
            self._kv[layer][:, :keep, :, length:] = 0
        self._capacity, self._touched = capacity, keep

    def _touch(self, rows: int) -> None:
        for kv in self._kv:
            kv[:, self._touched : rows] = 0
        self._touched = rows

    def _empty(self, capacity: int) -> Tensor:
        slots, heads, dim = self._shape
        return torch.empty(2, slots, heads, capacity, dim, dtype=self._dtype)
