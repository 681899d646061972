"""What a harness says: messages, tools, sampling wishes, free of any wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

INT64_MAX = 2**63 - 1
"""Every integer that comes from outside is within 64 bits: JSON and the store hold no larger ones."""


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    id: str
    """As on the wire: minted by us in an answer, whatever the harness made of it in a history."""
    name: str
    arguments: str
    """JSON text, exactly as sampled or as sent; never parsed and printed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """An image of a message. Its bytes are in `ModelRequest.images`."""

    sha256: str
    """Of the exact bytes, in hex."""
    media_type: str
    at: int
    """It stands before the character of the message's text with this number; at the end: the text's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: Role
    text: str = ""
    images: tuple[ImageRef, ...] = ()
    """Of a user or tool message, in their order."""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    reasoning_mark: str = ""
    """The id of the call whose reasoning stands here: a signature or an encrypted block of ours, read back."""
    tool_call_id: str = ""
    """On a tool message: the call that it answers."""
    is_error: bool = False
    """On a tool message: the harness says that the call failed. The text says it too; prompts do not change."""
    name: str = ""

    def __post_init__(self) -> None:
        if self.role is not Role.ASSISTANT and (self.tool_calls or self.reasoning or self.reasoning_mark):
            raise ValueError(f"a {self.role} message carries no tool calls and no reasoning")
        if self.images:
            self._check_images()

    def _check_images(self) -> None:
        if self.role not in (Role.USER, Role.TOOL):
            raise ValueError(f"a {self.role} message carries no images")
        places = [0, *(image.at for image in self.images), len(self.text)]
        if places != sorted(places):
            raise ValueError(f"images at {places[1:-1]} of a text of {places[-1]} characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    definition: str
    """The function's JSON text {"name", "description", "parameters", ...}, keys in the client's order."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """None means: not said. What was asked and what was used are both recorded."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def pinned_by(self, pins: Sampling) -> Sampling:
        """`pins` wins where it says something; max_tokens is the smaller of the two; stop strings stay the caller's."""
        merged = {
            name: getattr(pins, name) if getattr(pins, name) is not None else getattr(self, name) for name in _PINNED
        }
        caps = [cap for cap in (self.max_tokens, pins.max_tokens) if cap is not None]
        return Sampling(**merged, max_tokens=min(caps) if caps else None, stop=self.stop)

    def changes_distribution(self) -> bool:
        """True where log-probs are not those of softmax(logits / temperature)."""
        unset = (self.top_p in (None, 1.0), self.top_k in (None, 0, -1), self.min_p in (None, 0.0))
        penalties = (self.presence_penalty in (None, 0.0), self.frequency_penalty in (None, 0.0))
        return not all((*unset, *penalties, self.repetition_penalty in (None, 1.0)))


_PINNED = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model call, free of its wire format."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """auto | none | required | the name of a tool."""
    sampling: Sampling = field(default_factory=Sampling)
    output_schema: str = ""
    """JSON text of the schema that the answer's text is to follow; "" where none was asked for."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Bytes by sha256, of all images of the messages."""
    model: str = ""
    """The name that the harness asked for; every name is answered by the policy."""
    ignored: tuple[str, ...] = ()
    """Fields that do not change meaning: kept in the record by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessCall:
    """The intent: what came in, before anything was sampled."""

    call_id: str
    session_id: str
    dialect: str
    request: ModelRequest
    received_at: float
    """Unix time, seconds."""
    digest: str
    """Of the request's meaning; an equal digest is an equal request."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Headers that help to label sub-agents and compaction, and idempotency marks."""
