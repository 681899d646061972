"""One model call as it was committed: the unit of truth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from openforgerl.records.events import Finish
from openforgerl.records.images import PromptImage
from openforgerl.records.messages import Message, Sampling, ToolSpec


class SpanKind(StrEnum):
    REASONING = "reasoning"
    TEXT = "text"
    TOOL_CALL = "tool_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of an answer: sampled ids [start, stop) hold it, with its markup.

    `exact` is false where the part begins or ends inside a token.
    """

    kind: SpanKind
    start: int
    stop: int
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDelta:
    """A prompt, as ids: the first `cut` ids of the parent's prompt + sampled ids, then `new_ids`."""

    parent: str | None
    cut: int
    new_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.cut < 0 or (self.parent is None and self.cut):
            raise ValueError(f"cut {self.cut} without a parent")

    def __len__(self) -> int:
        return self.cut + len(self.new_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDelta:
    """A message list: the first `cut` messages of the parent call's list, then `new`."""

    parent: str | None
    cut: int
    new: tuple[Message, ...]


class Completion(StrEnum):
    COMPLETE = "complete"
    CLIENT_ABORTED = "client_aborted"
    ENGINE_ABORTED = "engine_aborted"
    ERROR = "error"
    LATE = "late"
    """Finished after its session was closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """How much of the answer the harness got: all, the text of the first `count` sampled ids, or nobody knows."""

    state: Literal["full", "prefix", "unknown"]
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRun:
    """`count` sampled ids in a row came from one policy version."""

    policy_version: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One model call as it was committed: the unit of truth."""

    call_id: str
    session_id: str
    index: int
    """Place in the session's order of sampling, from 0."""
    dialect: str
    prompt: PromptDelta
    messages: MessagesDelta
    tools: tuple[ToolSpec, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob_kind: str
    """"sampled" is log softmax(logits / temperature); "raw" is log softmax(logits), at another temperature than 1;
    "scripted" is no distribution's; "none": the answer came as text, without ids."""
    spans: tuple[Span, ...]
    answer: Message
    """The answer as it was parsed and sent, tool-call ids included."""
    finish: Finish | None
    """None where the call did not complete."""
    completion: Completion
    delivered: Delivered
    versions: tuple[VersionRun, ...]
    sampling_asked: Sampling
    sampling_used: Sampling
    model_asked: str
    digest: str
    template_hash: str
    tokenizer_hash: str
    started_at: float
    ended_at: float
    stop_string: str | None = None
    ends_turn: bool = True
    """The last sampled id is an end-of-turn id."""
    tool_choice: str = "auto"
    output_schema: str = ""
    schema_enforced: bool = False
    """The engine sampled under a grammar: another distribution."""
    labels: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    """What assembly and parsing did beside the plain path, e.g. reencoded_turns, split_tokens, ambiguous_turns."""
    error: str = ""
    images: tuple[PromptImage, ...] = ()
    """Of the prompt, in their order; their bytes are in the store."""
    processor_hash: str = ""
    """Of the settings that cut the images into patches; "" for a model that reads none."""

    def __post_init__(self) -> None:
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(f"call {self.call_id}: {len(self.sampled_ids)} ids but {len(self.logprobs)} log-probs")
        if sum(run.count for run in self.versions) != len(self.sampled_ids):
            raise ValueError(f"call {self.call_id}: policy versions do not cover its sampled ids")
        if any(not math.isfinite(value) or value > 1e-6 for value in self.logprobs):
            raise ValueError(f"call {self.call_id}: a log-prob is not a finite number <= 0")
