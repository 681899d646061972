"""Loss formulas over per-token tensors: pure, no model, no reduction across micro-batches hidden inside.

Placeholders of masked tokens are cut away by indexing before any arithmetic, so that even a NaN cannot enter a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """Per trained token, shape (n,): the loss term with its gradient, and detached facts about it."""

    loss: Tensor
    ratio: Tensor
    """current / proximal."""
    importance: Tensor
    """proximal / behaviour, before truncation."""
    clipped: Tensor
    """True where the clip takes the gradient away."""


def policy_terms(
    *,
    current: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantage: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    importance_cap: float = 2.0,
) -> PolicyTerms:
    """Decoupled clipped surrogate of the tokens where `mask` is true; all arguments have shape (tokens,).

    r = exp(current - proximal), w = min(exp(proximal - behaviour), importance_cap) without gradient,
    loss = -w * min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A).
    PPO (arXiv 1707.06347, eq. 7), asymmetric clip (DAPO, arXiv 2503.14476), decoupled proximal and behaviour policies
    (arXiv 2110.00641, as used by AReaL, arXiv 2505.24298), truncated importance weight (IMPALA, arXiv 1802.01561).
    """
    current, proximal, behaviour, advantage = (x[mask] for x in (current, proximal.detach(), behaviour, advantage))
    ratio = torch.exp(current - proximal)
    importance = torch.exp(proximal - behaviour)
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    surrogate = torch.minimum(ratio * advantage, bounded * advantage)
    fixed = ratio.detach()
    clipped = ((advantage > 0) & (fixed > 1.0 + clip_high)) | ((advantage < 0) & (fixed < 1.0 - clip_low))
    return PolicyTerms(
        loss=-importance.clamp(max=importance_cap) * surrogate, ratio=fixed, importance=importance, clipped=clipped
    )


def policy_loss(terms: PolicyTerms, weight: Tensor, denominator: float) -> Tensor:
    """sum(weight * loss) / denominator; the denominator is that of the whole batch, not of this micro-batch."""
    return (terms.loss * weight).sum() / denominator


def nll_loss(current: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """-sum of the log-probs where `mask` is true / denominator (the number of such tokens in the whole batch)."""
    return -current[mask].sum() / denominator


def join(parts: Sequence[PolicyTerms]) -> PolicyTerms:
    """The terms of several micro-batches, without gradient."""
    names = ("loss", "ratio", "importance", "clipped")
    return PolicyTerms(**{name: torch.cat([getattr(part, name).detach() for part in parts]) for name in names})


def policy_metrics(terms: PolicyTerms, importance_cap: float) -> dict[str, float]:
    """Over all trained tokens of a step. `kl_behaviour` estimates KL(behaviour || proximal) from behaviour's samples:
    mean of x - 1 - log x with x = proximal / behaviour (k3, http://joschu.net/blog/kl-approx.html)."""
    ratio, importance = terms.ratio.double(), terms.importance.double()
    return {
        "clip_fraction": terms.clipped.double().mean().item(),
        "ratio_mean": ratio.mean().item(),
        "ratio_max": ratio.max().item(),
        "importance_mean": importance.mean().item(),
        "importance_max": importance.max().item(),
        "importance_truncated": (importance > importance_cap).double().mean().item(),
        "kl_behaviour": (importance - 1.0 - importance.clamp(min=1e-300).log()).mean().item(),
    }
