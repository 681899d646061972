"""One token per row out of a batch of logits, with the log-prob of the distribution that it was drawn from.

Order: temperature, top-k, top-p over what is left, min-p over what is left. Temperature 0 takes the likeliest id, and
its log-prob is that of the untempered softmax. A row's draws depend on its own random numbers only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openforgerl.engines.limits import refusal
from openforgerl.records import GenerateRequest

_PENALTIES = (("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("repetition_penalty", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """How one call is sampled, checked, with its own stream of random numbers."""

    temperature: float
    top_k: int
    """0: all."""
    top_p: float
    min_p: float
    rng: random.Random

    @property
    def truncates(self) -> bool:
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def row_sampling(request: GenerateRequest) -> RowSampling:
    """What the request asks for; unset: temperature 1, no truncation. Raises EngineError that names the field."""
    asked = request.sampling
    for name, neutral in _PENALTIES:
        if getattr(asked, name) not in (None, neutral):
            raise refusal(f"{name} {getattr(asked, name)} is not supported by the local engine; leave it out")
    top_k = 0 if asked.top_k in (None, -1) else asked.top_k or 0
    temperature = _in_range("temperature", asked.temperature, 1.0, 0.0, 100.0)
    top_p = _in_range("top_p", asked.top_p, 1.0, 0.0, 1.0)
    min_p = _in_range("min_p", asked.min_p, 0.0, 0.0, 1.0)
    if top_k < 0:
        raise refusal(f"top_k {top_k} must be positive, or 0 or -1 for all ids")
    return RowSampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, rng=random.Random(asked.seed))


def sample(logits: Tensor, rows: Sequence[RowSampling]) -> tuple[list[int], list[float]]:
    """`logits`: (rows, vocabulary). A row whose logits are not finite numbers gets the log-prob NaN."""
    scale = torch.tensor([1.0 / row.temperature if row.temperature > 0 else 1.0 for row in rows])
    logprobs = torch.log_softmax(logits.float() * scale[:, None], dim=-1)
    for index, row in enumerate(rows):
        if row.truncates:
            logprobs[index] = _truncated(logprobs[index], row)
    ids = _draw(logprobs, rows)
    picked = logprobs.gather(1, ids[:, None])[:, 0]
    return ids.tolist(), [min(value, 0.0) if math.isfinite(value) else math.nan for value in picked.tolist()]


def _draw(logprobs: Tensor, rows: Sequence[RowSampling]) -> Tensor:
    """Inverse CDF: the first id whose cumulative probability exceeds a uniform number."""
    ids = logprobs.argmax(dim=-1)
    drawn = [index for index, row in enumerate(rows) if row.temperature > 0]
    if not drawn:
        return ids
    chosen = logprobs if len(drawn) == len(rows) else logprobs[drawn]
    cumulative = chosen.exp().cumsum(dim=-1, dtype=torch.float64)
    uniforms = torch.tensor([[rows[index].rng.random()] for index in drawn], dtype=torch.float64)
    total = cumulative[:, -1:]
    # Below the total whatever the rounding, so that an id of probability 0 is never drawn.
    targets = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    ids[drawn] = found.clamp_(max=logprobs.shape[-1] - 1)
    return ids


def _truncated(logprobs: Tensor, row: RowSampling) -> Tensor:
    """One row's log-probs over the ids that truncation keeps, -inf elsewhere. Ties at an edge keep the lower id."""
    ordered, order = logprobs.sort(descending=True, stable=True)
    if 0 < row.top_k < ordered.numel():
        ordered[row.top_k :] = -math.inf
    if row.top_p < 1:
        probs = torch.softmax(ordered, dim=-1)
        before = probs.cumsum(dim=-1, dtype=torch.float64) - probs
        before[0] = -1.0
        ordered[before >= row.top_p] = -math.inf
    if row.min_p > 0:
        ordered[ordered < ordered[0] + math.log(row.min_p)] = -math.inf
    kept = torch.log_softmax(ordered, dim=-1)
    return torch.empty_like(kept).scatter_(0, order, kept)


def _in_range(name: str, value: float | None, unset: float, low: float, high: float) -> float:
    if value is None:
        return unset
    if not low <= value <= high:
        raise refusal(f"{name} {value} must be between {low} and {high}")
    return value
