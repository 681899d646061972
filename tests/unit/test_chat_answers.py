"""Chat Completions answers: the stream and the plain body come from the same events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from openforgerl.dialects.chat_events import ChatRenderer
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

STARTED = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=3)
USAGE = Usage(prompt_tokens=3, sampled_tokens=4)
TWO_CALLS: list[CallEvent] = [
    ReasoningDelta(text="hm"),
    TextDelta(text="I "),
    TextDelta(text="look."),
    ToolCallStarted(index=0, id="call1", name="bash"),
    ToolArgumentsDelta(index=0, text='{"a": '),
    ToolArgumentsDelta(index=0, text="1.0}"),
    ToolCallEnded(index=0),
    ToolCallStarted(index=1, id="call2", name="read"),
    ToolArgumentsDelta(index=1, text="{}"),
    ToolCallEnded(index=1),
]


def rendered(
    events: Sequence[CallEvent], finish: Finish = Finish.STOP, *, include_usage: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """The stream's data lines ("[DONE]" as it stands), and the plain body."""
    renderer = ChatRenderer(model="m", include_usage=include_usage)
    raw = b"".join(renderer.chunk(event) for event in (STARTED, *events, CallFinished(finish=finish, usage=USAGE)))
    return data_of(raw), json.loads(renderer.whole())


def data_of(raw: bytes) -> list[Any]:
    blocks = raw.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


def assembled(chunks: Sequence[Any]) -> dict[str, Any]:
    """What a client makes of the deltas."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    for chunk in chunks:
        if chunk == "[DONE]" or not chunk["choices"]:
            continue
        delta = chunk["choices"][0]["delta"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "type": call["type"], "function": call["function"]})
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


def test_stream_and_plain_body_say_the_same() -> None:
    chunks, body = rendered(TWO_CALLS, Finish.TOOL_CALLS)
    streamed, plain = assembled(chunks), body["choices"][0]["message"]
    for name in ("content", "reasoning_content", "tool_calls", "role"):
        assert streamed[name] == plain[name]
    assert plain["tool_calls"][0]["function"]["arguments"] == '{"a": 1.0}'
    assert chunks[-2]["choices"][0]["finish_reason"] == body["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1] == "[DONE]"
    assert {chunk["id"] for chunk in chunks[:-1]} == {body["id"]} == {"chatcmpl-abc"}


def test_tool_call_indices_are_dense_and_start_at_zero_behind_text() -> None:
    chunks, _ = rendered(TWO_CALLS)
    indices = [
        call["index"]
        for chunk in chunks[:-1]
        for call in chunk["choices"][0]["delta"].get("tool_calls", ())
        if "id" in call
    ]
    assert indices == [0, 1]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [(Finish.STOP, "stop"), (Finish.STOP_STRING, "stop"), (Finish.LENGTH, "length"), (Finish.TOOL_CALLS, "tool_calls")],
)
def test_finish_reasons(finish: Finish, reason: str) -> None:
    chunks, body = rendered([TextDelta(text="x")], finish)
    assert body["choices"][0]["finish_reason"] == reason
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + [reason]


@pytest.mark.parametrize("include_usage", [True, False])
def test_usage_stands_in_exactly_one_chunk(include_usage: bool) -> None:
    chunks, body = rendered([TextDelta(text="x")], include_usage=include_usage)
    with_usage = [chunk for chunk in chunks[:-1] if chunk.get("usage")]
    assert with_usage == [chunks[-2]]
    assert (chunks[-2]["choices"] == []) is include_usage
    assert body["usage"] == with_usage[0]["usage"]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"], body["usage"]["total_tokens"]) == (
        3,
        4,
        7,
    )


def test_content_is_null_beside_calls_and_empty_without() -> None:
    assert rendered(TWO_CALLS[3:])[1]["choices"][0]["message"]["content"] is None
    assert rendered([])[1]["choices"][0]["message"]["content"] == ""
    assert "tool_calls" not in rendered([])[1]["choices"][0]["message"]


def test_a_failure_ends_the_stream_with_an_error_and_without_done() -> None:
    renderer = ChatRenderer(model="m")
    failed = CallFailed(message="later", code="engine_aborted", http_status=503)
    chunks = data_of(b"".join(renderer.chunk(event) for event in (STARTED, TextDelta(text="x"), failed)))
    assert chunks[-1]["error"]["code"] == "engine_aborted"
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()
