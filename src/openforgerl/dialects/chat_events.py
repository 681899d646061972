"""One answer on the Chat Completions wire: the same events give the SSE chunks and the plain body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallFinished,
    CallStarted,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
    Usage,
)

_REASONS = {
    Finish.STOP: "stop",
    Finish.STOP_STRING: "stop",
    Finish.LENGTH: "length",
    Finish.TOOL_CALLS: "tool_calls",
}
_DONE = b"data: [DONE]\n\n"
_IDLE = b": waiting\n\n"


def error_body(message: str, *, status: int, code: str, param: str | None = None) -> dict[str, object]:
    """OpenAI's error object."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def whole(self) -> dict[str, object]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class ChatRenderer:
    """A Renderer. The usage stands in exactly one chunk: a client that adds usages up counts it once."""

    model: str
    include_usage: bool = False
    _started: CallStarted | None = None
    _text: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[_Call] = field(default_factory=list)
    _end: CallFinished | CallFailed | None = None

    def chunk(self, event: CallEvent) -> bytes:
        match event:
            case CallStarted():
                self._started = event
                return self._delta({"role": "assistant", "content": ""})
            case TextDelta(text=text):
                self._text.append(text)
                return self._delta({"content": text})
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
                return self._delta({"reasoning_content": text})
            case ToolCallStarted(id=call_id, name=name):
                self._calls.append(_Call(call_id, name))
                function = {"name": name, "arguments": ""}
                return self._call({"index": event.index, "id": call_id, "type": "function", "function": function})
            case ToolArgumentsDelta(index=index, text=text):
                self._calls[index].arguments.append(text)
                return self._call({"index": index, "function": {"arguments": text}})
            case CallFinished() | CallFailed():
                self._end = event
                return self._last(event)
        return b""

    def idle(self) -> bytes:
        return _IDLE

    def whole(self) -> bytes:
        if not isinstance(self._end, CallFinished):
            raise ValueError("an answer that did not finish has no plain body")
        choice = {
            "index": 0,
            "message": self._message(),
            "logprobs": None,
            "finish_reason": _REASONS[self._end.finish],
        }
        return orjson.dumps({**self._head("chat.completion"), "choices": [choice], "usage": _usage(self._end.usage)})

    def _message(self) -> dict[str, object]:
        text = "".join(self._text)
        content = text or (None if self._calls else "")
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        return message

    def _last(self, event: CallFinished | CallFailed) -> bytes:
        """A failure ends the stream without [DONE]: no client may take it for an answer."""
        if isinstance(event, CallFailed):
            return _sse(error_body(event.message, status=event.http_status, code=event.code))
        usage = {"usage": _usage(event.usage)}
        if not self.include_usage:
            return self._delta({}, _REASONS[event.finish], usage) + _DONE
        tail = _sse({**self._head("chat.completion.chunk"), "choices": [], **usage})
        return self._delta({}, _REASONS[event.finish]) + tail + _DONE

    def _call(self, call: Mapping[str, object]) -> bytes:
        return self._delta({"tool_calls": [call]})

    def _delta(
        self, delta: Mapping[str, object], reason: str | None = None, extra: Mapping[str, object] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _sse({**self._head("chat.completion.chunk"), "choices": [choice], **(extra or {})})

    def _head(self, kind: str) -> dict[str, object]:
        call_id, created = (self._started.call_id, self._started.created) if self._started else ("", 0)
        return {"id": f"chatcmpl-{call_id}", "object": kind, "created": created, "model": self.model}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.sampled_tokens,
        "total_tokens": usage.prompt_tokens + usage.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _sse(value: Mapping[str, object]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
