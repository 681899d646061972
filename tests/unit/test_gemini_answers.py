"""Gemini answers: a strict reader of the stream, and a plain body that says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from gemini_stream import StreamReader, WrongStreamError, read_stream, responses_of
from openforgerl.dialects.gemini_events import GeminiRenderer, error_body
from openforgerl.dialects.marks import signed_call
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
USAGE = Usage(prompt_tokens=30, sampled_tokens=9, cached_tokens=20, reasoning_tokens=4)
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
FORMS = pytest.mark.parametrize("is_sse", [True, False])


def rendered(
    events: Sequence[CallEvent], finish: Finish = Finish.STOP, *, thoughts: bool = True, is_sse: bool = True
) -> tuple[bytes, bytes]:
    """The stream, and the plain body."""
    renderer = GeminiRenderer(model="m", shows_thoughts=thoughts, is_sse=is_sse)
    end = CallFinished(finish=finish, usage=USAGE)
    raw = b"".join(renderer.chunk(event) for event in (STARTED, *events, end))
    return raw, renderer.whole()


def parts_of(body: bytes) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = json.loads(body)["candidates"][0]["content"]["parts"]
    return parts


def failed(event: CallFailed, *, is_sse: bool = True) -> StreamReader:
    renderer = GeminiRenderer(model="m", is_sse=is_sse)
    raw = b"".join(renderer.chunk(each) for each in (STARTED, TextDelta(text="x"), event))
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()
    return read_stream(raw, is_sse=is_sse)


@FORMS
def test_stream_and_plain_body_say_the_same(is_sse: bool) -> None:
    raw, plain = rendered(TWO_CALLS, Finish.TOOL_CALLS, is_sse=is_sse)
    body = json.loads(plain)
    assert read_stream(raw, is_sse=is_sse).whole() == body
    kinds = [next(key for key in part if key != "thoughtSignature") for part in parts_of(plain)]
    assert kinds == ["text", "text", "functionCall", "functionCall"]
    assert (body["responseId"], body["modelVersion"]) == ("abc", "m")


def test_a_call_comes_whole_in_one_response_and_its_arguments_are_an_object() -> None:
    raw, plain = rendered(TWO_CALLS)
    streamed = [
        part["functionCall"]
        for response in responses_of(raw, is_sse=True)
        for part in response["candidates"][0]["content"]["parts"]
        if "functionCall" in part
    ]
    assert streamed == [part["functionCall"] for part in parts_of(plain) if "functionCall" in part]
    assert [(call["id"], call["name"], call["args"]) for call in streamed] == [
        ("call1", "bash", {"a": 1.0}),
        ("call2", "read", {}),
    ]
    assert b'"args":{"a": 1.0}' in plain, "as it was sampled"


@pytest.mark.parametrize("thoughts", [True, False])
def test_the_first_part_behind_reasoning_is_signed_with_the_call(thoughts: bool) -> None:
    parts = parts_of(rendered(TWO_CALLS, thoughts=thoughts)[1])
    assert [part["text"] for part in parts if part.get("thought")] == (["hm"] if thoughts else [])
    said = [part for part in parts if not part.get("thought")]
    assert signed_call(said[0]["thoughtSignature"]) == "abc"
    assert all("thoughtSignature" not in part for part in parts if part is not said[0])


def test_a_call_right_behind_reasoning_is_signed_and_parallel_ones_are_not() -> None:
    events = [event for event in TWO_CALLS if not isinstance(event, TextDelta)]
    first, second = parts_of(rendered(events, thoughts=False)[1])
    assert signed_call(first["thoughtSignature"]) == "abc"
    assert "thoughtSignature" not in second


def test_an_answer_without_reasoning_is_not_signed() -> None:
    raw, _ = rendered([TextDelta(text="x")])
    assert b"thoughtSignature" not in raw


def test_text_between_calls_is_a_part_of_its_own() -> None:
    events = [*TWO_CALLS[4:8], TextDelta(text="and "), TextDelta(text="then"), *TWO_CALLS[8:]]
    raw, plain = rendered(events)
    assert [part.get("text", "call") for part in parts_of(plain)] == ["call", "and then", "call"]
    assert read_stream(raw).whole() == json.loads(plain)


@pytest.mark.parametrize("events", [[], [ReasoningDelta(text="hm")]])
def test_an_answer_that_shows_nothing_has_an_empty_text(events: list[CallEvent]) -> None:
    """Without a part the SDKs' chats drop the turn."""
    raw, plain = rendered(events, thoughts=False)
    assert parts_of(plain) == [{"text": ""}]
    assert read_stream(raw).whole() == json.loads(plain)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (Finish.STOP, "STOP"),
        (Finish.TOOL_CALLS, "STOP"),
        (Finish.STOP_STRING, "STOP"),
        (Finish.LENGTH, "MAX_TOKENS"),
    ],
)
def test_finish_reasons(finish: Finish, reason: str) -> None:
    raw, plain = rendered([TextDelta(text="x")], finish)
    assert json.loads(plain)["candidates"][0]["finishReason"] == reason
    reasons = [response["candidates"][0].get("finishReason") for response in responses_of(raw, is_sse=True)]
    assert reasons == [None, reason], "only the last response ends the answer"


def test_usage_tells_thoughts_apart_and_adds_up() -> None:
    raw, plain = rendered(TWO_CALLS)
    usage = json.loads(plain)["usageMetadata"]
    assert usage == {
        "promptTokenCount": 30,
        "cachedContentTokenCount": 20,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 4,
        "totalTokenCount": 39,
    }
    *earlier, last = responses_of(raw, is_sse=True)
    assert last["usageMetadata"] == usage
    assert {response["usageMetadata"]["promptTokenCount"] for response in earlier} == {30}


@FORMS
@pytest.mark.parametrize(
    ("status", "word"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    ],
)
def test_a_failure_is_an_error_and_no_end(status: int, word: str, is_sse: bool) -> None:
    reader = failed(CallFailed(message="later", code="broken", http_status=status), is_sse=is_sse)
    assert reader.error is not None
    assert not reader.ended
    assert (reader.error["code"], reader.error["status"], reader.error["message"]) == (status, word, "later")
    assert reader.error == error_body("later", status=status, code="broken")["error"], "as before the answer began"


def old_javascript_sdk(chunks: Sequence[bytes]) -> str:
    """What @google/genai 1.30 does with a stream: the error that it raises, "" for none.

    A chunk of the network that is an error's JSON is raised; events are cut off the front; a rest is an error.
    """
    buffer = b""
    for chunk in chunks:
        try:
            if "error" in json.loads(chunk):
                return "ApiError"
        except ValueError:
            pass
        buffer += chunk
        while found := re.match(rb"\s*data: (.*)(?:\n\n|\r\r|\r\n\r\n)", buffer):
            buffer = buffer[found.end() :]
    return "Incomplete JSON segment" if buffer.strip() else ""


def test_a_client_that_takes_error_events_for_responses_sees_a_failure_however_its_bytes_are_cut() -> None:
    renderer = GeminiRenderer(model="m")
    raw = renderer.chunk(STARTED) + renderer.chunk(TextDelta(text="x"))
    failure = renderer.chunk(CallFailed(message="later", code="broken", http_status=503))
    event = failure[failure.index(b"data: ") :]
    assert old_javascript_sdk([raw, event]) == "", "an event alone looks like an end"
    assert old_javascript_sdk([raw + failure]) != ""
    for cut in range(len(raw + failure) + 1):
        whole = raw + failure
        assert old_javascript_sdk([piece for piece in (whole[:cut], whole[cut:]) if piece]) != ""
    ended, _ = rendered(TWO_CALLS)
    assert old_javascript_sdk([ended]) == ""


def test_a_full_context_is_told_with_its_numbers() -> None:
    full = ContextFull(prompt_tokens=123, context_length=100)
    event = CallFailed(message="full", code="context_length_exceeded", http_status=400, context_full=full)
    error = failed(event).error
    assert error is not None
    assert error["message"] == "The input token count (123) exceeds the maximum number of tokens allowed (100)."


def broken(raw: bytes, change: str) -> list[dict[str, Any]]:
    responses = responses_of(raw, is_sse=True)
    parts = [response["candidates"][0]["content"]["parts"] for response in responses]
    call = next(place for place, found in enumerate(parts) if "functionCall" in found[0])
    match change:
        case "something comes behind the end":
            responses.append(responses[0])
        case "the end comes twice":
            responses.append(responses[-1])
        case "something comes behind an error":
            responses.insert(1, {"error": {"code": 500}})
        case "an error stands beside an answer":
            responses[1] = {**responses[1], "error": {"code": 500}}
        case "a response has another id":
            responses[2]["responseId"] = "other"
        case "a response has no parts":
            parts[1].clear()
        case "a response is of another role":
            responses[0]["candidates"][0]["content"]["role"] = "user"
        case "the arguments are text":
            parts[call][0]["functionCall"]["args"] = "{}"
        case "a signature stands in the middle of a text":
            parts[3][0]["thoughtSignature"] = "x"
    return responses


@pytest.mark.parametrize(
    "change",
    [
        "something comes behind the end", "the end comes twice", "something comes behind an error",
        "an error stands beside an answer", "a response has another id", "a response has no parts",
        "a response is of another role", "the arguments are text", "a signature stands in the middle of a text",
    ],
)  # fmt: skip
def test_the_reader_of_these_tests_refuses_a_wrong_stream(change: str) -> None:
    raw, _ = rendered(TWO_CALLS)
    read_stream(raw)
    again = StreamReader()

    def read() -> None:
        for response in broken(raw, change):
            again.take(response)

    with pytest.raises(WrongStreamError):
        read()


@FORMS
def test_the_reader_of_these_tests_wants_an_end(is_sse: bool) -> None:
    raw, _ = rendered(TWO_CALLS, is_sse=is_sse)
    start = raw.rindex(b"data: ") if is_sse else raw.rindex(b",\r\n")
    with pytest.raises(WrongStreamError, match="no end"):
        read_stream(raw[:start] + (b"" if is_sse else b"]"), is_sse=is_sse)


def test_the_reader_of_these_tests_wants_nothing_but_data() -> None:
    raw, _ = rendered(TWO_CALLS)
    for wrong in (b": comment\r\n\r\n" + raw, raw + b"data: {", raw + b"[]\r\n\r\n", raw[:-2]):
        with pytest.raises(WrongStreamError, match="no data"):
            read_stream(wrong)


def test_the_reader_of_these_tests_wants_an_error_bare_and_as_an_event() -> None:
    raw, _ = rendered(TWO_CALLS)
    error = b'{"error": {"code": 500}}\r\n\r\n'
    start = raw[: raw.rindex(b"data: ")]
    assert read_stream(start + error + b"data: " + error).error == {"code": 500}
    first = start.index(b"data: ", 1)
    for wrong in (
        start + b"data: " + error,
        start + error,
        start + b"data: " + error + error,
        start[:first] + error + start[first:] + b"data: " + error,
    ):
        with pytest.raises(WrongStreamError):
            read_stream(wrong)
