"""Keys and values of the rows that are being decoded: one slot a row, written at each row's own position.

Rows of different lengths decode as one batch over the slots [0, rows), sliced to the longest one; no step copies what
is there. Memory of a slot is touched when it is first used, and `fit` keeps what is touched within a limit.
"""

from __future__ import annotations

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
        self._slots = self._positions = torch.zeros(0, dtype=torch.long)

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

    def aim(self, slots: Tensor, positions: Tensor) -> None:
        """Where the next forward's ids belong: their slots and positions, one by one."""
        self._slots, self._positions = slots, positions

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by every attention layer with (1, heads, ids, dim); gives all slots."""
        keys, values = self._kv[layer_idx]
        keys[self._slots, :, self._positions] = key_states[0].transpose(0, 1)
        values[self._slots, :, self._positions] = value_states[0].transpose(0, 1)
        return keys, values

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
