"""One answer on the Gemini wire: the same events give the stream and the plain body.

Each chunk of the stream is a response of its own, whose parts go on where the ones before ended; the last one carries
the finish reason. A call of a tool comes whole. A failure is an error object in place of all that was to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Finish.STOP: "STOP",
    Finish.STOP_STRING: "STOP",
    Finish.LENGTH: "MAX_TOKENS",
    Finish.TOOL_CALLS: "STOP",
}
_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_body(
    message: str, *, status: int, code: str, field: str | None = None, full: ContextFull | None = None
) -> dict[str, object]:
    """Google's error object; a full context in the API's own words."""
    kind = _STATUSES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    if full:
        count, most = full
        message = f"The input token count ({count}) exceeds the maximum number of tokens allowed ({most})."
    details: list[dict[str, object]] = [
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code.upper(), "domain": "openforgerl"}
    ]
    if field:
        violation = {"field": field, "description": message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    return {"error": {"code": status, "message": message, "status": kind, "details": details}}


@dataclass(slots=True)
class _Part:
    """A part of the answer, whose pieces come in order."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    id: str = ""
    name: str = ""
    signature: str = ""

    def shown(self, text: str) -> dict[str, object]:
        """As it stands in a response that holds `text` of it."""
        signed = {"thoughtSignature": self.signature} if self.signature else {}
        match self.kind:
            case "thought":
                return {"text": text, "thought": True}
            case "call":
                call = {"id": self.id, "name": self.name, "args": orjson.Fragment(object_text(text))}
                return {"functionCall": call, **signed}
        return {"text": text, **signed}


@dataclass(slots=True)
class GeminiRenderer:
    """A Renderer. The first part behind reasoning carries the signature that stands for it."""

    model: str
    shows_thoughts: bool = False
    """Whether reasoning is sent: clients that did not ask for thoughts take any text for the answer."""
    is_sse: bool = True
    """Server-sent events; else a JSON array that grows."""
    _started: CallStarted | None = None
    _parts: list[_Part] = field(default_factory=list)
    _has_reasoned: bool = False
    _is_signed: bool = False
    _has_sent: bool = False
    _end: CallFinished | CallFailed | None = None

    def chunk(self, event: CallEvent) -> bytes:
        match event:
            case CallStarted():
                self._started = event
            case ReasoningDelta(text=text):
                self._has_reasoned = self._has_reasoned or bool(text)
                if self.shows_thoughts:
                    return self._grow("thought", text)
            case TextDelta(text=text):
                return self._grow("text", text)
            case ToolCallStarted(id=call_id, name=name):
                self._parts.append(_Part("call", id=call_id, name=name, signature=self._signature()))
            case ToolArgumentsDelta(text=text):
                self._parts[-1].pieces.append(text)
            case ToolCallEnded():
                part = self._parts[-1]
                return self._send(self._response([part.shown("".join(part.pieces))]))
            case CallFinished() | CallFailed():
                self._end = event
                return self._last(event)
        return b""

    def idle(self) -> bytes:
        """Readers of this format know no comments."""
        return b""

    def whole(self) -> bytes:
        if not isinstance(self._end, CallFinished):
            raise ValueError("an answer that did not finish has no plain body")
        parts = [part.shown("".join(part.pieces)) for part in self._parts]
        return orjson.dumps(self._response(parts or [{"text": ""}], self._end))

    def _grow(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        first = not self._parts or self._parts[-1].kind != kind
        if first:
            self._parts.append(_Part(kind, signature="" if kind == "thought" else self._signature()))
        part = self._parts[-1]
        part.pieces.append(text)
        return self._send(self._response([part.shown(text) if first else _Part(kind).shown(text)]))

    def _signature(self) -> str:
        """Once, for the first part behind reasoning."""
        if self._is_signed or not self._has_reasoned or self._started is None:
            return ""
        self._is_signed = True
        return signature_of(self._started.call_id)

    def _last(self, event: CallFinished | CallFailed) -> bytes:
        if isinstance(event, CallFailed):
            body = error_body(event.message, status=event.http_status, code=event.code, full=event.context_full)
            # Bare too: the JavaScript SDK 1.30, that of Gemini CLI 0.61, takes an error event for a response.
            bare = orjson.dumps(body) + b"\r\n\r\n" if self.is_sse else b""
            return bare + self._send(body, ends=True)
        # An empty part: the SDKs' chats keep no turn that has a response without parts.
        return self._send(self._response([{"text": ""}], event), ends=True)

    def _response(self, parts: Sequence[Mapping[str, object]], end: CallFinished | None = None) -> dict[str, object]:
        prompt_tokens = self._started.prompt_tokens if self._started else 0
        candidate: dict[str, object] = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if end:
            candidate["finishReason"] = _REASONS[end.finish]
        return {
            "candidates": [candidate],
            "usageMetadata": _usage(end.usage) if end else {"promptTokenCount": prompt_tokens},
            "modelVersion": self.model,
            "responseId": self._started.call_id if self._started else "",
        }

    def _send(self, value: Mapping[str, object], *, ends: bool = False) -> bytes:
        data = orjson.dumps(value)
        if self.is_sse:
            return b"data: " + data + b"\r\n\r\n"
        head, self._has_sent = b",\r\n" if self._has_sent else b"[", True
        return head + data + (b"]" if ends else b"")


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "candidatesTokenCount": usage.sampled_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.sampled_tokens,
    }
