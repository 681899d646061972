"""Rows of ids with their masks, and what a trainer makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from openforgerl.records.images import PromptImage


class CallKind(StrEnum):
    MAIN = "main"
    SUBAGENT = "subagent"
    SUMMARY = "summary"
    SIDE = "side"


class MaskReason(StrEnum):
    """Why a token of a row carries no loss."""

    CONTEXT = "context"
    """Not sampled here: prompt, template, tool output, or a sampled token that another row owns."""
    SIDE_CALL = "side_call"
    CLIENT_ABORTED = "client_aborted"
    ENGINE_ABORTED = "engine_aborted"
    CALL_ERROR = "call_error"
    LATE = "late"
    CHANGED_DISTRIBUTION = "changed_distribution"
    """Top-p, a grammar, a forced tool, a temperature unlike its row's: the log-probs are not the policy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The sampled ids of one call inside a row: token_ids[start:stop]. Exactly one row of a session owns a call."""

    call_id: str
    start: int
    stop: int
    owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One leaf of a session's trie, from the first prompt id to the leaf's last sampled id.

    All per-token sequences have the length of `token_ids`; logprobs is 0.0 and policy_versions -1 exactly where a
    token is context, one that another row owns included.
    """

    session_id: str
    branch: int
    """Number of the leaf within its session, from 0 in the order in which the first call that it owns was sampled."""
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    mask_reasons: tuple[MaskReason | None, ...]
    """None exactly where loss_mask is 1."""
    logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    logprob_kind: str
    temperature: float
    segments: tuple[Segment, ...]
    images: tuple[PromptImage, ...] = ()
    """In the order of their places in `token_ids`."""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.mask_reasons)}
        if lengths | {len(self.logprobs), len(self.policy_versions)} != {len(self.token_ids)}:
            raise ValueError(f"row {self.session_id}/{self.branch}: per-token sequences differ in length")
        if any((mask == 1) != (reason is None) for mask, reason in zip(self.loss_mask, self.mask_reasons, strict=True)):
            raise ValueError(f"row {self.session_id}/{self.branch}: a mask and its reason disagree")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The check of a row against the trainer while its policy version lives: max |engine - trainer| log-prob."""

    session_id: str
    branch: int
    policy_version: int
    tokens: int
    """Sampled tokens that were compared, whatever their mask."""
    max_gap: float
    mean_gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A row with its credit. `weight` 0 means: seen, counted, not trained."""

    row: TokenRow
    rollout_id: str
    group_id: str
    reward: float
    advantage: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one optimizer step is computed from."""

    rows: tuple[TrainingRow, ...]
    denominator: float
    """The loss is the sum of per-token terms divided by this (token-mean: trained tokens of all admitted rollouts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one optimizer step did."""

    step: int
    policy_version: int
    metrics: Mapping[str, float]
