"""log softmax(logits)[target] with its entropy: few passes over the vocabulary, one buffer kept for backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def target_logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(n, vocabulary), (n,) -> log-probs (n,) with gradient, entropies (n,) without. Backward may run once."""
    logprobs, entropies = _TargetLogprobs.apply(logits, targets)  # type: ignore[no-untyped-call]
    return logprobs, entropies


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        shifted = logits - logits.amax(dim=-1, keepdim=True)
        chosen = shifted.gather(1, targets[:, None])[:, 0]
        probabilities = shifted.exp()
        total = probabilities.sum(dim=-1)
        probabilities /= total[:, None]
        norm = total.log()
        entropies = norm - torch.einsum("nv,nv->n", probabilities, shifted)
        ctx.save_for_backward(probabilities, targets)
        ctx.mark_non_differentiable(entropies)
        return chosen - norm, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        probabilities, targets = ctx.saved_tensors
        of_logits = probabilities.mul_(-gradient[:, None])  # the buffer is ours: saves a copy of vocabulary size
        of_logits.scatter_add_(1, targets[:, None], gradient[:, None])
        return of_logits, None
