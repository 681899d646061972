"""One answer on the Messages wire: the same events give the stream and the plain body.

The stream is a state machine: message_start; each block is started, grows and is stopped before the next one starts;
message_delta; message_stop. A failure is an error event in place of all that was to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from openforgerl.dialects.arguments import object_text
from openforgerl.dialects.marks import signature_of
from openforgerl.errors import ContextFull
from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallFinished,
    CallStarted,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)

_REASONS = {
    Finish.STOP: "end_turn",
    Finish.STOP_STRING: "stop_sequence",
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: "tool_use",
}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_IDLE = b'event: ping\ndata: {"type":"ping"}\n\n'


def error_body(message: str, *, status: int, code: str, full: ContextFull | None = None) -> dict[str, object]:
    """Anthropic's error object; a full context in the words that start a harness's own compaction."""
    kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if code == "context_length_exceeded":
        why = f"{full.prompt_tokens} tokens > {full.context_length} maximum" if full else message
        message = f"prompt is too long: {why}"
    return {"type": "error", "error": {"type": kind, "message": message, "details": {"error_code": code}}}


@dataclass(slots=True)
class _Block:
    """A block of the answer, whose pieces come in order."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    id: str = ""
    name: str = ""
    signature: str = ""

    def whole(self) -> dict[str, object]:
        text = "".join(self.pieces)
        match self.kind:
            case "thinking":
                return {"type": "thinking", "thinking": text, "signature": self.signature}
            case "tool_use":
                return {**self.empty(), "input": orjson.Fragment(object_text(text))}
        return {"type": "text", "text": text}

    def empty(self) -> dict[str, object]:
        """As it starts on the stream."""
        match self.kind:
            case "thinking":
                return {"type": "thinking", "thinking": "", "signature": ""}
            case "tool_use":
                return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}
        return {"type": "text", "text": ""}

    def last_delta(self) -> dict[str, object] | None:
        """What is said when it ends. The input of a tool comes whole: only then is it certain to be an object."""
        match self.kind:
            case "thinking":
                return {"type": "signature_delta", "signature": self.signature}
            case "tool_use":
                return {"type": "input_json_delta", "partial_json": object_text("".join(self.pieces))}
        return None


@dataclass(slots=True)
class MessagesRenderer:
    """A Renderer."""

    model: str
    shows_thinking: bool = True
    _started: CallStarted | None = None
    _blocks: list[_Block] = field(default_factory=list)
    _open: _Block | None = None
    """The last block, while it grows."""
    _end: CallFinished | CallFailed | None = None

    def chunk(self, event: CallEvent) -> bytes:
        match event:
            case CallStarted():
                self._started = event
                return _sse("message_start", {"message": self._message(event.prompt_tokens)})
            case ReasoningDelta(text=text):
                return self._grow("thinking", text) if self.shows_thinking else b""
            case TextDelta(text=text):
                return self._grow("text", text)
            case ToolCallStarted(id=call_id, name=name):
                return self._close() + self._start(_Block("tool_use", id=call_id, name=name))
            case ToolArgumentsDelta(text=text):
                self._blocks[-1].pieces.append(text)
                return b""
            case ToolCallEnded():
                return self._close()
            case CallFinished() | CallFailed():
                self._end = event
                return self._last(event)

    def idle(self) -> bytes:
        return _IDLE

    def whole(self) -> bytes:
        if not isinstance(self._end, CallFinished):
            raise ValueError("an answer that did not finish has no plain body")
        content = [block.whole() for block in self._blocks]
        end = {"content": content, **_stop(self._end), "usage": _usage(self._end.usage)}
        return orjson.dumps({**self._message(self._end.usage.prompt_tokens), **end})

    def _message(self, prompt_tokens: int) -> dict[str, object]:
        """As it starts on the stream."""
        return {
            "id": f"msg_{self._started.call_id if self._started else ''}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(prompt_tokens=prompt_tokens, sampled_tokens=0)),
        }

    def _grow(self, kind: str, text: str) -> bytes:
        """A block grows; it is started where another one or none is open."""
        if not text:
            return b""
        block, head = self._open, b""
        if block is None or block.kind != kind:
            signature = signature_of(self._started.call_id) if self._started and kind == "thinking" else ""
            block = _Block(kind, signature=signature)
            head = self._close() + self._start(block)
        block.pieces.append(text)
        return head + self._delta({"type": f"{kind}_delta", kind: text})

    def _start(self, block: _Block) -> bytes:
        self._blocks.append(block)
        self._open = block
        return _sse("content_block_start", {"index": len(self._blocks) - 1, "content_block": block.empty()})

    def _delta(self, delta: Mapping[str, object]) -> bytes:
        return _sse("content_block_delta", {"index": len(self._blocks) - 1, "delta": delta})

    def _close(self) -> bytes:
        """Ends the open block, if there is one."""
        block, self._open = self._open, None
        if block is None:
            return b""
        delta = block.last_delta()
        last = self._delta(delta) if delta else b""
        return last + _sse("content_block_stop", {"index": len(self._blocks) - 1})

    def _last(self, event: CallFinished | CallFailed) -> bytes:
        """A failure closes nothing: no client may take a cut block, or a cut answer, for a whole one."""
        if isinstance(event, CallFailed):
            body = error_body(event.message, status=event.http_status, code=event.code, full=event.context_full)
            return _sse("error", body)
        delta = {"delta": _stop(event), "usage": _usage(event.usage)}
        return self._close() + _sse("message_delta", delta) + _sse("message_stop", {})


def _stop(event: CallFinished) -> dict[str, object]:
    matched = event.stop_string if event.finish is Finish.STOP_STRING else None
    return {"stop_reason": _REASONS[event.finish], "stop_sequence": matched}


def _usage(usage: Usage) -> dict[str, object]:
    """The three kinds of input tokens add up to the prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.sampled_tokens,
    }


def _sse(name: str, value: Mapping[str, object]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps({"type": name, **value}) + b"\n\n"
