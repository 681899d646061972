"""One attempt of one rollout: how it ended and how it was graded are two facts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from openforgerl.records.ids import check_id
from openforgerl.records.messages import Sampling


class EndedBy(StrEnum):
    FINISHED = "finished"
    AGENT_TIMEOUT = "agent_timeout"
    AGENT_CRASH = "agent_crash"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"
    INFRA = "infra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a session ended; `reason` is named for infra, and may be for the others."""

    ended_by: EndedBy
    reason: str = ""
    counters: Mapping[str, int] = field(default_factory=dict, compare=False)
    """What was counted beside the calls until then; empty where nobody lived to count, e.g. after a kill -9."""

    def __post_init__(self) -> None:
        if self.ended_by is EndedBy.INFRA and not self.reason:
            raise ValueError("an infrastructure failure names its reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """reward (a finite number) | ungraded(reason) | grader_error(reason). Only a reward enters loss or baseline."""

    kind: Literal["reward", "ungraded", "grader_error"]
    reward: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind == "reward":
            if self.reward is None or not math.isfinite(self.reward):
                raise ValueError(f"reward {self.reward!r} is not a finite number")
        elif self.reward is not None or not self.reason:
            raise ValueError(f"a grade of kind {self.kind} has a reason and no reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One attempt of one rollout."""

    session_id: str
    task_id: str = ""
    group_id: str = ""
    rollout_id: str = ""
    attempt: int = 0
    harness: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    """Pins: they win over what the harness asks."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free marks of the run: split, step, phase, policy version at the start."""
    created_at: float = 0.0
    ending: Ending | None = None
    """None while it is open; a session with an ending is sealed."""
    grade: Grade | None = None

    def __post_init__(self) -> None:
        check_id("session_id", self.session_id)
        for name in ("group_id", "rollout_id"):
            if getattr(self, name):
                check_id(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What became of a session's rows: trained in a step (sft or rl), or left out for one named reason.

    The last use of a session counts; a session without one is open work.
    """

    session_id: str
    phase: str
    """sft | grpo | evaluation."""
    step: int
    trained: bool
    reason: str = ""
    """Named where trained is false: evaluation, zero_variance, infra, ungraded, superseded, ..."""

    def __post_init__(self) -> None:
        if self.trained == bool(self.reason):
            raise ValueError(f"use of {self.session_id}: a session is trained, or left out for a reason")
