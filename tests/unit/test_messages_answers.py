"""Messages answers: a strict state machine of events, and a plain body that says the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from messages_stream import StreamReader, WrongStreamError, events_of, read_stream
from openforgerl.dialects.arguments import object_text
from openforgerl.dialects.marks import signed_call
from openforgerl.dialects.messages_events import MessagesRenderer
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

STARTED = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=30)
USAGE = Usage(prompt_tokens=30, sampled_tokens=4, cached_tokens=20)
TWO_CALLS: list[CallEvent] = [
    ReasoningDelta(text="h"),
    ReasoningDelta(text="m"),
    TextDelta(text="I "),
    TextDelta(text="look."),
    ToolCallStarted(index=0, id="call1", name="bash"),
    ToolArgumentsDelta(index=0, text='{"a": '),
    ToolArgumentsDelta(index=0, text="1.0}"),
    ToolCallEnded(index=0),
    ToolCallStarted(index=1, id="call2", name="read"),
    ToolCallEnded(index=1),
]


def rendered(
    events: Sequence[CallEvent],
    finish: Finish = Finish.STOP,
    *,
    stop_string: str | None = None,
    shows_thinking: bool = True,
) -> tuple[bytes, dict[str, Any]]:
    """The stream, and the plain body."""
    renderer = MessagesRenderer(model="m", shows_thinking=shows_thinking)
    end = CallFinished(finish=finish, usage=USAGE, stop_string=stop_string)
    raw = b"".join(renderer.chunk(event) for event in (STARTED, *events, end))
    return raw, json.loads(renderer.whole())


def failed(code: str, status: int, message: str = "later", full: ContextFull | None = None) -> dict[str, Any]:
    renderer = MessagesRenderer(model="m")
    end = CallFailed(message=message, code=code, http_status=status, context_full=full)
    raw = b"".join(renderer.chunk(event) for event in (STARTED, TextDelta(text="x"), end))
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()
    error = read_stream(raw).error
    assert error is not None
    return error


def test_stream_and_plain_body_say_the_same() -> None:
    raw, body = rendered(TWO_CALLS, Finish.TOOL_CALLS)
    assert read_stream(raw).message == body
    assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.get("input") for block in body["content"]][2:] == [{"a": 1.0}, {}]
    assert (body["id"], body["type"], body["role"], body["model"]) == ("msg_abc", "message", "assistant", "m")


def test_the_events_of_an_answer_come_in_the_order_of_the_format() -> None:
    kinds = [event["type"].removeprefix("content_block_") for event in events_of(rendered(TWO_CALLS)[0])]
    thinking = ["start", "delta", "delta", "delta", "stop"]
    assert kinds == [
        "message_start", *thinking, "start", "delta", "delta", "stop", "start", "delta", "stop", "start", "delta",
        "stop", "message_delta", "message_stop",
    ]  # fmt: skip


def test_the_plain_body_has_the_arguments_as_they_were_sampled() -> None:
    renderer = MessagesRenderer(model="m")
    events = [STARTED, *TWO_CALLS, CallFinished(finish=Finish.TOOL_CALLS, usage=USAGE)]
    raw = b"".join(renderer.chunk(event) for event in events)
    assert b'"input":{"a": 1.0}' in renderer.whole()
    assert b'"partial_json":"{\\"a\\": 1.0}"' in raw


def test_thinking_is_signed_with_the_call() -> None:
    _, body = rendered(TWO_CALLS)
    assert body["content"][0]["thinking"] == "hm"
    assert signed_call(body["content"][0]["signature"]) == "abc"


def test_thinking_is_left_out_where_the_client_disabled_it() -> None:
    raw, body = rendered(TWO_CALLS, shows_thinking=False)
    assert [block["type"] for block in body["content"]] == ["text", "tool_use", "tool_use"]
    assert read_stream(raw).message == body


def test_an_answer_without_anything_has_no_blocks() -> None:
    raw, body = rendered([TextDelta(text="")])
    assert body["content"] == []
    assert read_stream(raw).message == body


def test_text_between_calls_is_a_block_of_its_own() -> None:
    raw, body = rendered([*TWO_CALLS[4:8], TextDelta(text="and"), *TWO_CALLS[8:]])
    assert [block["type"] for block in body["content"]] == ["tool_use", "text", "tool_use"]
    assert read_stream(raw).message == body


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (Finish.STOP, "end_turn"),
        (Finish.STOP_STRING, "stop_sequence"),
        (Finish.LENGTH, "max_tokens"),
        (Finish.TOOL_CALLS, "tool_use"),
    ],
)
def test_finish_reasons(finish: Finish, reason: str) -> None:
    raw, body = rendered([TextDelta(text="x")], finish, stop_string="END" if finish is Finish.STOP_STRING else None)
    matched = "END" if finish is Finish.STOP_STRING else None
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, matched)
    assert read_stream(raw).message == body


def test_input_tokens_are_without_the_cached_ones_and_known_from_the_start() -> None:
    raw, body = rendered([TextDelta(text="x")])
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 20, "output_tokens": 4}
    first, *_, delta, _ = events_of(raw)
    assert body["usage"] == delta["usage"] == usage
    assert (first["message"]["usage"]["input_tokens"], first["message"]["usage"]["output_tokens"]) == (30, 0)


def test_a_stream_that_waits_is_kept_alive_by_pings() -> None:
    renderer = MessagesRenderer(model="m")
    end = CallFinished(finish=Finish.STOP, usage=USAGE)
    raw = renderer.idle() + renderer.chunk(STARTED) + renderer.idle() + renderer.chunk(end)
    assert [event["type"] for event in events_of(raw)].count("ping") == 2
    assert read_stream(raw).ended


@pytest.mark.parametrize(
    ("status", "kind"),
    [(500, "api_error"), (503, "overloaded_error"), (504, "timeout_error"), (410, "invalid_request_error")],
)
def test_a_failure_ends_the_stream_with_an_error_event(status: int, kind: str) -> None:
    assert failed("some_code", status) == {"type": kind, "message": "later", "details": {"error_code": "some_code"}}


def test_a_full_context_is_told_in_the_words_that_start_a_compaction() -> None:
    error = failed("context_length_exceeded", 400, full=ContextFull(prompt_tokens=507, context_length=40))
    assert (error["type"], error["message"]) == (
        "invalid_request_error",
        "prompt is too long: 507 tokens > 40 maximum",
    )
    assert failed("context_length_exceeded", 400, "no room")["message"] == "prompt is too long: no room"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"b":1.0,  "a": 12345678901234567890}', '{"b":1.0,  "a": 12345678901234567890}'),
        ("", "{}"),
        ("  \n", "{}"),
        ("[1]", '{"arguments": "[1]"}'),
        ('{"a": ', '{"arguments": "{\\"a\\": "}'),
        ("NaN", '{"arguments": "NaN"}'),
        ('{"a": "\\ud83d"}', '{"a": "\ufffd"}'),
        ("\ud83d", '{"arguments": "?"}'),
        ("[" * 100_000, '{"arguments": "' + "[" * 100_000 + '"}'),
    ],
)
def test_arguments_are_always_an_object(arguments: str, text: str) -> None:
    assert object_text(arguments) == text
    assert isinstance(json.loads(text), dict)


def broken(raw: bytes, change: str) -> list[dict[str, Any]]:
    events = events_of(raw)
    starts = [place for place, event in enumerate(events) if event["type"] == "content_block_start"]
    stops = [place for place, event in enumerate(events) if event["type"] == "content_block_stop"]
    match change:
        case "a block is never stopped":
            del events[stops[0]]
        case "a block is never started":
            del events[starts[1]]
        case "a block is stopped twice":
            events.insert(stops[0], events[stops[0]])
        case "a block has a wrong number":
            events[starts[1]]["index"] += 1
        case "a delta has the number of another block":
            events[starts[1] + 1]["index"] = 0
        case "a delta is of another kind":
            events[starts[1] + 1]["delta"] = {"type": "thinking_delta", "thinking": "x"}
        case "thinking goes on behind its signature":
            events.insert(stops[0], {**events[stops[0] - 1], "delta": {"type": "thinking_delta", "thinking": "x"}})
        case "the signature is missing":
            del events[stops[0] - 1]
        case "the start is missing":
            del events[0]
        case "the start comes twice":
            events.insert(1, {"type": "message_start", "message": {**events[0]["message"]}})
        case "the reason is missing":
            events[-2]["delta"]["stop_reason"] = None
        case "the delta is missing":
            del events[-2]
        case "the delta comes twice":
            events.insert(-1, events[-2])
        case "a block comes behind the delta":
            events.insert(-1, {**events[starts[1]], "index": 4})
        case "something comes behind the end":
            events.append({"type": "ping"})
        case "the input is no object":
            events[stops[2] - 1]["delta"]["partial_json"] = "[]"
    return events


@pytest.mark.parametrize(
    "change",
    [
        "a block is never stopped", "a block is never started", "a block is stopped twice",
        "a block has a wrong number", "a delta has the number of another block", "a delta is of another kind",
        "thinking goes on behind its signature", "the signature is missing", "the start is missing",
        "the start comes twice", "the reason is missing", "the delta is missing", "the delta comes twice",
        "a block comes behind the delta", "something comes behind the end", "the input is no object",
    ],
)  # fmt: skip
def test_the_reader_of_these_tests_refuses_a_wrong_stream(change: str) -> None:
    raw, _ = rendered(TWO_CALLS)
    reader = StreamReader()
    for event in events_of(raw):
        reader.take(event)
    again = StreamReader()

    def read() -> None:
        for event in broken(raw, change):
            again.take(event)

    with pytest.raises(WrongStreamError):
        read()


def test_the_reader_of_these_tests_wants_an_end() -> None:
    raw, _ = rendered(TWO_CALLS)
    with pytest.raises(WrongStreamError, match="no end"):
        read_stream(raw[: raw.index(b"event: message_delta")])
