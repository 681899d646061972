"""One answer on the Responses wire: the same events give the stream and the plain body.

The stream is a state machine: created, in_progress; each item is added, grows and is done before the next one is added;
one terminal event. The final response holds the items as they were done. A failure is the terminal event in place of
all that was to come, and closes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from openforgerl.dialects.marks import signature_of
from openforgerl.dialects.responses_calls import CUSTOM, FORMS, Route, item_of
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

_IDLE = b": waiting\n\n"
_ERRORS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


def error_body(message: str, *, status: int, code: str, param: str | None = None) -> dict[str, object]:
    """OpenAI's error object."""
    kind = _ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(slots=True)
class _Item:
    """An item of the answer while it grows."""

    kind: str
    id: str
    number: int
    """Its place in the output."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class _Call:
    """A tool call while its arguments come."""

    id: str
    route: Route
    item: _Item | None = None
    """None for a call whose kind is only certain when its arguments are whole."""
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ResponsesRenderer:
    """A Renderer."""

    model: str
    routes: Mapping[str, Route] = field(default_factory=dict)
    echo: Mapping[str, object] = field(default_factory=dict)
    summarizes: bool = False
    _started: CallStarted | None = None
    _output: list[Mapping[str, object]] = field(default_factory=list)
    """The items that are done."""
    _open: _Item | None = None
    _call: _Call | None = None
    _sequence: int = 0
    _end: CallFinished | CallFailed | None = None

    def chunk(self, event: CallEvent) -> bytes:
        match event:
            case CallStarted():
                self._started = event
                return self._state("response.created") + self._state("response.in_progress")
            case ReasoningDelta(text=text):
                return self._grow("reasoning", text)
            case TextDelta(text=text):
                return self._grow("message", text)
            case ToolCallStarted(id=call_id, name=name):
                return self._close() + self._begin(call_id, self.routes.get(name) or Route(name=name))
            case ToolArgumentsDelta(text=text):
                return self._argue(text)
            case ToolCallEnded():
                return self._finish_call()
            case CallFinished() | CallFailed():
                self._end = event
                return self._last(event)

    def idle(self) -> bytes:
        """A comment resets no client's clock; an event does."""
        return self._state("response.in_progress") if self._started else _IDLE

    def whole(self) -> bytes:
        if not isinstance(self._end, CallFinished):
            raise ValueError("an answer that did not finish has no plain body")
        return orjson.dumps(self._response(_status(self._end), _end_of(self._end)))

    def _last(self, event: CallFinished | CallFailed) -> bytes:
        if isinstance(event, CallFailed):
            error = {"code": _failure_code(event), "message": event.message}
            return self._event("response.failed", {"response": self._response("failed", {"error": error})})
        status = _status(event)
        closing = self._finish_call() + self._close(status)
        return closing + self._event(f"response.{status}", {"response": self._response(status, _end_of(event))})

    def _state(self, kind: str) -> bytes:
        return self._event(kind, {"response": self._response("in_progress", {}, output=())})

    def _response(
        self, status: str, end: Mapping[str, object], output: tuple[object, ...] | None = None
    ) -> dict[str, object]:
        call_id, created = (self._started.call_id, self._started.created) if self._started else ("", 0)
        return {
            "id": f"resp_{call_id}",
            "object": "response",
            "created_at": created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": self._output if output is None else output,
            "previous_response_id": None,
            "store": False,
            "usage": None,
            **self.echo,
            **end,
        }

    def _grow(self, kind: str, text: str) -> bytes:
        """An item grows; it is added where another one or none is open."""
        if not text:
            return b""
        head = b""
        if self._open is None or self._open.kind != kind:
            head = self._close() + self._add(kind)
        return head + self._delta(text)

    def _add(self, kind: str) -> bytes:
        item = self._open = self._new(kind)
        added = self._item_event("added", item, self._shown(item, "in_progress"))
        part = _part(self._text_kind(item), "")
        return added + self._within(f"response.{self._part_kind(item)}.added", item, part=part)

    def _new(self, kind: str) -> _Item:
        number, call_id = len(self._output), self._started.call_id if self._started else ""
        prefix = _PREFIXES.get(kind, kind.removesuffix("_call"))
        return _Item(kind=kind, id=f"{prefix}_{call_id}_{number}", number=number)

    def _delta(self, text: str) -> bytes:
        if self._open is None:
            return b""
        self._open.pieces.append(text)
        return self._within(f"response.{self._text_kind(self._open)}.delta", self._open, delta=text)

    def _close(self, status: str = "completed") -> bytes:
        """Ends the open text or reasoning, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        kind, text = self._text_kind(item), item.text
        return (
            self._within(f"response.{kind}.done", item, text=text)
            + self._within(f"response.{self._part_kind(item)}.done", item, part=_part(kind, text))
            + self._done(item, {**self._shown(item, status), self._part(item): [_part(kind, text)]})
        )

    def _shown(self, item: _Item, status: str) -> dict[str, object]:
        head: dict[str, object] = {"id": item.id, "type": item.kind, "status": status}
        if item.kind == "message":
            return {**head, "role": "assistant", "content": []}
        signature = signature_of(self._started.call_id) if self._started else ""
        return {**head, "summary": [], "content": [], "encrypted_content": signature}

    def _part(self, item: _Item) -> str:
        """Where the text of an item stands."""
        return "summary" if item.kind == "reasoning" and self.summarizes else "content"

    def _part_kind(self, item: _Item) -> str:
        return "content_part" if self._part(item) == "content" else "reasoning_summary_part"

    def _text_kind(self, item: _Item) -> str:
        if item.kind == "message":
            return "output_text"
        return "reasoning_summary_text" if self.summarizes else "reasoning_text"

    def _within(self, kind: str, item: _Item, **fields: object) -> bytes:
        """An event of the one part that an item has."""
        head = {"item_id": item.id, "output_index": item.number, f"{self._part(item)}_index": 0}
        logprobs: dict[str, object] = {"logprobs": []} if kind.startswith("response.output_text") else {}
        return self._event(kind, {**head, **fields, **logprobs})

    def _begin(self, call_id: str, route: Route) -> bytes:
        self._call = _Call(call_id, route)
        if route.kind in FORMS:
            return b""
        empty = item_of(route, call_id, "")
        kind, blank = ("custom_tool_call", "input") if route.kind == CUSTOM else ("function_call", "arguments")
        self._call.item = self._new(kind)
        return self._item_event(
            "added", self._call.item, _with_head(self._call.item, {**empty, blank: ""}, "in_progress")
        )

    def _argue(self, text: str) -> bytes:
        """The input of a freeform call is within its arguments: it is certain once they are whole."""
        if self._call is None:
            return b""
        self._call.pieces.append(text)
        item = self._call.item
        if item is None or item.kind != "function_call" or not text:
            return b""
        return self._arguments_event("function_call_arguments.delta", item, delta=text)

    def _finish_call(self) -> bytes:
        call, self._call = self._call, None
        if call is None:
            return b""
        whole = item_of(call.route, call.id, "".join(call.pieces))
        item, head = call.item, b""
        if item is None:
            item = self._new(str(whole["type"]))
            blank = {"arguments": ""} if item.kind == "function_call" else {}
            head = self._item_event("added", item, _with_head(item, {**whole, **blank}, "in_progress"))
        return head + self._said(call, item, whole) + self._done(item, _with_head(item, whole, "completed"))

    def _said(self, call: _Call, item: _Item, whole: Mapping[str, object]) -> bytes:
        """What is left to say of a call's arguments, and that they are whole."""
        if item.kind == "function_call":
            sent = "".join(call.pieces) if call.item else ""
            arguments = str(whole["arguments"])
            rest = arguments.removeprefix(sent)
            delta = self._arguments_event("function_call_arguments.delta", item, delta=rest) if rest else b""
            name = {"name": whole["name"], "arguments": arguments}
            return delta + self._arguments_event("function_call_arguments.done", item, **name)
        if item.kind == "custom_tool_call":
            given = whole["input"]
            delta = self._arguments_event("custom_tool_call_input.delta", item, delta=given) if given else b""
            return delta + self._arguments_event("custom_tool_call_input.done", item, input=given)
        return b""

    def _arguments_event(self, kind: str, item: _Item, **fields: object) -> bytes:
        return self._event(f"response.{kind}", {"item_id": item.id, "output_index": item.number, **fields})

    def _done(self, item: _Item, whole: Mapping[str, object]) -> bytes:
        self._output.append(whole)
        return self._item_event("done", item, whole)

    def _item_event(self, what: str, item: _Item, shown: Mapping[str, object]) -> bytes:
        return self._event(f"response.output_item.{what}", {"output_index": item.number, "item": shown})

    def _event(self, kind: str, fields: Mapping[str, object]) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _with_head(item: _Item, shown: Mapping[str, object], status: str) -> dict[str, object]:
    return {"id": item.id, **shown, "status": status}


def _part(kind: str, text: str) -> dict[str, object]:
    if kind == "output_text":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "summary_text" if kind == "reasoning_summary_text" else "reasoning_text", "text": text}


def _status(event: CallFinished) -> str:
    return "incomplete" if event.finish is Finish.LENGTH else "completed"


def _end_of(event: CallFinished) -> dict[str, object]:
    cut = {"incomplete_details": {"reason": "max_output_tokens"}} if event.finish is Finish.LENGTH else {}
    return {**cut, "usage": _usage(event.usage)}


def _failure_code(event: CallFailed) -> str:
    """The codes that clients know say whether to try again."""
    if event.http_status == 429:
        return "rate_limit_exceeded"
    return "server_error" if event.http_status >= 500 else event.code


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.sampled_tokens,
    }
