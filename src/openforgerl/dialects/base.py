"""What a wire format is to the rest: bytes to a ModelRequest, events to bytes. Sans-I/O; no dialect knows another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from openforgerl.dialects.rereading import JsonMemory
from openforgerl.errors import OpenForgeError
from openforgerl.records import CallEvent, ModelRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request to a session's address, the prefix `/s/<session id>` cut off."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    memory: JsonMemory | None = None
    """Of the session: reads the body, and knows what of it stood in earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountCall:
    """A wish to know how many ids a prompt has; nothing is sampled or recorded."""

    request: ModelRequest
    answer: Callable[[int], HttpAnswer]
    """Of the number of ids."""


class Renderer(Protocol):
    """Owns the state of one answer. The same events give the stream and the plain form."""

    def chunk(self, event: CallEvent) -> bytes:
        """The bytes that this event puts on the stream; may be empty. The terminal event closes the stream."""
        ...

    def idle(self) -> bytes:
        """What keeps a stream alive that has nothing to say yet; b"" where the format has nothing for it."""
        ...

    def whole(self) -> bytes:
        """The plain body, once every event went through `chunk`; the stream's bytes are then thrown away."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A model call, understood."""

    request: ModelRequest
    stream: bool
    renderer: Renderer
    content_type: str = "text/event-stream"
    """Of the streamed form."""


class Dialect(Protocol):
    """One wire format."""

    @property
    def name(self) -> str: ...

    def claims(self, request: HttpRequest) -> bool:
        """Whether this dialect answers that method, path and header set."""
        ...

    def key(self, request: HttpRequest) -> str:
        """The secret as this dialect carries it; "" where there is none."""
        ...

    def parse(self, request: HttpRequest) -> ParsedCall | CountCall | HttpAnswer:
        """A model call, a count of a prompt, or the answer to a probe (model listing, HEAD). Raises DialectError."""
        ...

    def failure(self, error: OpenForgeError) -> HttpAnswer:
        """The error as this dialect's clients expect it."""
        ...
