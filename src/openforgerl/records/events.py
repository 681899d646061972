"""What an engine gives, and the internal event stream that every dialect renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from openforgerl.errors import ContextFull
from openforgerl.records.images import PromptImage
from openforgerl.records.messages import ModelRequest, Sampling


class EngineFinish(StrEnum):
    STOP = "stop"
    """An end-of-turn token was sampled."""
    LENGTH = "length"
    ABORT = "abort"
    """The engine gave the call up: the turn is not committed as complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    request_id: str
    session_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stop_ids: tuple[int, ...]
    """Every end-of-turn id; a sampled one is part of the output."""
    output_schema: str = ""
    """JSON text of the schema that the text of the answer follows, where the engine enforces schemas."""
    images: tuple[PromptImage, ...] = ()
    """In the order of their places in the prompt."""
    image_bytes: Mapping[str, bytes] = field(default_factory=dict)
    """By sha256, of all images."""
    conversation: ModelRequest | None = None
    """What the prompt spells, for an engine that takes text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateChunk:
    """Some sampled ids of one policy version; the last chunk of a call has `finish`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural logarithm, of the distribution that was sampled."""
    policy_version: int
    finish: EngineFinish | None = None
    said: tuple[CallEvent, ...] = ()
    """Parts of an answer that has no ids: an engine gives either."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} log-probs")


class Finish(StrEnum):
    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    STOP_STRING = "stop_string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    sampled_tokens: int
    cached_tokens: int = 0
    """Of the prompt."""
    reasoning_tokens: int = 0
    """Of the sampled ones, with the markup around the reasoning."""


# The internal event stream of one call: CallStarted, then deltas in order, then CallFinished or CallFailed. A tool
# call is started once, its arguments follow in order, and it is ended before the next one starts.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    call_id: str
    model: str
    created: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStarted:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgumentsDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallEnded:
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    finish: Finish
    usage: Usage
    stop_string: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
    """The terminal event of a call that failed after its answer had begun."""

    message: str
    code: str
    http_status: int
    context_full: ContextFull | None = None


CallEvent = (
    CallStarted
    | ReasoningDelta
    | TextDelta
    | ToolCallStarted
    | ToolArgumentsDelta
    | ToolCallEnded
    | CallFinished
    | CallFailed
)
