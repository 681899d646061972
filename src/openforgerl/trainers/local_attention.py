"""Full attention over a pack, branch by branch: each token meets exactly the tokens on its path.

The cost is the sum over branches of length x depth, not the square of the pack. Registered with transformers under
NAME; a model that uses it is called with `branches=masked_branches(pack)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from openforgerl.errors import TrainerError
from openforgerl.trainers.packing import Branch, Pack

NAME = "openforgerl_branches"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedBranch:
    """A branch with its additive mask (queries, context + queries); None where plain causal attention is the same."""

    branch: Branch
    mask: Tensor | None

    @property
    def own(self) -> slice:
        return slice(self.branch.start, self.branch.stop)

    @property
    def path(self) -> tuple[slice, ...]:
        """The node ranges that its tokens may see."""
        return (*(slice(start, stop) for start, stop in self.branch.context), self.own)


def masked_branches(pack: Pack) -> tuple[MaskedBranch, ...]:
    """Made once per pack, for all layers."""
    return tuple(MaskedBranch(branch=branch, mask=_mask(branch)) for branch in pack.branches)


def branch_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    branches: Sequence[MaskedBranch] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: (1, heads, T, width) in, (1, T, heads, width) out."""
    if branches is None or attention_mask is not None:
        raise TrainerError(f"{type(module).__name__} was called without the branches of a pack")
    attended: Tensor = _Branches.apply(query, key, value, branches, scaling)  # type: ignore[no-untyped-call]
    return attended.transpose(1, 2).contiguous(), None


class _Branches(torch.autograd.Function):
    """Every branch is a small attention of its own. Slicing under autograd would write a gradient of the whole
    pack's size for each branch; here the branches' gradients are added into one."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, branches: Sequence[MaskedBranch], scaling: float | None
    ) -> Tensor:
        learning = any(ctx.needs_input_grad[:3])
        attended = torch.empty_like(query)
        ctx.branches, ctx.kept = branches, []
        for one in branches:
            gathered = (query[:, :, one.own], _gather(key, one), _gather(value, one))
            leaves = [tensor.detach().requires_grad_(learning) for tensor in gathered]
            with torch.set_grad_enabled(learning):
                part = _attend(leaves, one.mask, scaling)
            attended[:, :, one.own] = part.detach()
            if learning:
                ctx.kept.append((part, leaves))
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        sizes = [leaf.shape[:2] for leaf in ctx.kept[0][1]]
        of_query, of_key, of_value = (gradient.new_zeros(*size, *gradient.shape[2:]) for size in sizes)
        for one, (part, leaves) in zip(ctx.branches, ctx.kept, strict=True):
            query, key, value = torch.autograd.grad(part, leaves, gradient[:, :, one.own])
            of_query[:, :, one.own] = query
            _add(of_key, key, one)
            _add(of_value, value, one)
        ctx.kept = []
        return of_query, of_key, of_value, None, None


def _attend(leaves: Sequence[Tensor], mask: Tensor | None, scaling: float | None) -> Tensor:
    query, key, value = leaves
    # A mask of another dtype than the query's is misread without an error.
    mask = None if mask is None else mask.to(query.dtype)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
    )


def _gather(tensor: Tensor, one: MaskedBranch) -> Tensor:
    parts = [tensor[:, :, nodes] for nodes in one.path]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _add(total: Tensor, gradient: Tensor, one: MaskedBranch) -> None:
    done = 0
    for nodes in one.path:
        size = nodes.stop - nodes.start
        total[:, :, nodes] += gradient[:, :, done : done + size]
        done += size


def _mask(branch: Branch) -> Tensor | None:
    if not branch.context:
        return None
    size, depth = branch.stop - branch.start, sum(stop - start for start, stop in branch.context)
    return torch.full((size, depth + size), -torch.inf).triu(depth + 1)


AttentionInterface.register(NAME, branch_attention)
