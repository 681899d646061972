"""Attention of one step over the slots: every row brings as many new ids as it has, all of them in one flat sequence.

The model's linear layers see (1, ids of all rows); only attention knows which id belongs to which slot. Rows with one
new id attend as one batch over the first slots, sliced to the longest; a row with several attends by itself. The
query heads that share a key head are folded into the query's length, so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "openforgerl_slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New ids of the row in `slot`, at the positions from `start` on."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True)
class _Singles:
    """Rows with one new id, as a batch over the slots [0, len(tokens))."""

    tokens: Tensor
    """Index in the flat sequence of each slot's id; any id where the slot has none."""
    slots: Tensor
    """The slots that have one."""
    stop: int
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Block:
    """A row with several new ids: flat sequence [first, last)."""

    slot: int
    first: int
    last: int
    stop: int
    mask: Tensor


class Plan:
    """Where the flat sequence of one step lies in the slots. Each slot has at most one piece."""

    def __init__(self, pieces: Sequence[Piece], *, group: int, dtype: torch.dtype) -> None:
        """`group`: query heads of one key head."""
        firsts, total = [], 0
        for piece in pieces:
            firsts.append(total)
            total += len(piece.ids)
        self.ids = torch.tensor([token for piece in pieces for token in piece.ids])
        self.positions = torch.cat([torch.arange(piece.start, piece.stop) for piece in pieces])
        self.slots = torch.tensor([piece.slot for piece in pieces for _ in piece.ids])
        self.lasts = torch.tensor([first + len(piece.ids) - 1 for first, piece in zip(firsts, pieces, strict=True)])
        """Index in the flat sequence of each piece's last id."""
        placed = list(zip(firsts, pieces, strict=True))
        self.singles = _singles([(first, piece) for first, piece in placed if len(piece.ids) == 1], dtype)
        self.blocks = [_block(first, piece, group, dtype) for first, piece in placed if len(piece.ids) > 1]


def _singles(placed: Sequence[tuple[int, Piece]], dtype: torch.dtype) -> _Singles | None:
    if not placed:
        return None
    count, stop = max(piece.slot for _, piece in placed) + 1, max(piece.stop for _, piece in placed)
    tokens, stops = torch.zeros(count, dtype=torch.long), torch.ones(count, 1, dtype=torch.long)
    for first, piece in placed:
        tokens[piece.slot] = first
        stops[piece.slot] = piece.stop
    mask = _additive(torch.arange(stop)[None, :] < stops, dtype)[:, None, None]
    return _Singles(tokens, torch.tensor([piece.slot for _, piece in placed]), stop, mask)


def _block(first: int, piece: Piece, group: int, dtype: torch.dtype) -> _Block:
    visible = torch.arange(piece.stop)[None, :] <= torch.arange(piece.start, piece.stop)[:, None]
    mask = _additive(visible, dtype).repeat(group, 1)[None, None]
    return _Block(piece.slot, first, first + len(piece.ids), piece.stop, mask)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    plan: Plan,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query (1, heads, ids, dim); key, value (slots, key heads, capacity, dim): all slots -> (1, ids, heads, dim)."""
    heads, dim = key.shape[1], query.shape[-1]
    group = query.shape[1] // heads
    tokens = query[0].transpose(0, 1)
    out = torch.empty_like(tokens)
    if (singles := plan.singles) is not None:
        count = len(singles.tokens)
        batched = tokens[singles.tokens].reshape(count, heads, group, dim)
        keys, values = key[:count, :, : singles.stop], value[:count, :, : singles.stop]
        got = scaled_dot_product_attention(batched, keys, values, attn_mask=singles.mask, scale=scaling)
        out[singles.tokens[singles.slots]] = got[singles.slots].reshape(-1, heads * group, dim)
    for block in plan.blocks:
        at, length = slice(block.slot, block.slot + 1), block.last - block.first
        folded = query[:, :, block.first : block.last].reshape(1, heads, group * length, dim)
        keys, values = key[at, :, : block.stop], value[at, :, : block.stop]
        got = scaled_dot_product_attention(folded, keys, values, attn_mask=block.mask, scale=scaling)
        out[block.first : block.last] = got.reshape(heads * group, length, dim).transpose(0, 1)
    return out[None], None


AttentionInterface.register(NAME, attend)
