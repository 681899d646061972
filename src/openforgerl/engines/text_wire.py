"""What the text APIs of both vendors have in common: a wire, without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from openforgerl.engines.wire import event, field_of, is_done
from openforgerl.errors import EngineError
from openforgerl.records import (
    CallEvent,
    EngineFinish,
    ModelRequest,
    Sampling,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
)

__all__ = ["Json", "Said", "TextAsked", "TextReader", "TextWire", "ToolCalls", "is_done", "item"]

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAsked:
    """One request to a text API."""

    conversation: ModelRequest
    sampling: Sampling
    max_tokens: int | None
    """None where neither the client nor the session said one."""
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one event of a stream holds."""

    events: tuple[CallEvent, ...] = ()
    finish: EngineFinish | None = None


class TextReader(Protocol):
    """Reads one stream."""

    def read(self, data: bytes) -> Said:
        """Of one event. Raises EngineError."""
        ...


class TextWire(Protocol):
    """One vendor's API."""

    path: str
    enforces_schema: bool

    def body(self, asked: TextAsked) -> bytes: ...

    def reader(self) -> TextReader: ...


class ToolCalls:
    """The tool calls of one stream: each is started once, and ended before the next one starts."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._open = False

    def take(self, key: int, call_id: object, name: object, arguments: object) -> Iterator[CallEvent]:
        """`key`: the number that the stream gives the call. Raises EngineError for parts out of order."""
        if key not in self._keys:
            if not (isinstance(call_id, str) and call_id and isinstance(name, str) and name):
                raise EngineError("the upstream model began a tool call without an id and a name")
            yield from self.end()
            self._keys.append(key)
            self._open = True
            yield ToolCallStarted(index=len(self._keys) - 1, id=call_id, name=name)
        if isinstance(arguments, str) and arguments:
            if key != self._keys[-1] or not self._open:
                raise EngineError("the upstream model went back to an earlier tool call")
            yield ToolArgumentsDelta(index=len(self._keys) - 1, text=arguments)

    def end(self) -> Iterator[CallEvent]:
        if self._open:
            self._open = False
            yield ToolCallEnded(index=len(self._keys) - 1)


def item(body: object, name: str = "") -> object:
    """A field of an object, None where there is none; without a name, the object in an event's bytes."""
    return field_of(body, name) if name or not isinstance(body, bytes) else event(body)
