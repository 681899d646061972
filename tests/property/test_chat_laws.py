"""The Chat Completions dialect over random bodies and answers: no crash, and two forms that say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from every_dialect import events_of
from openforgerl.dialects.base import HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.chat import ChatDialect
from openforgerl.dialects.chat_events import ChatRenderer
from openforgerl.dialects.chat_request import read_request
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.errors import DialectError, OpenForgeError
from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallFinished,
    Finish,
    ReasoningDelta,
    Role,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)
from random_answers import STARTED, TEXTS

NAMES = (
    "role", "content", "type", "text", "image_url", "url", "tool_calls", "id", "function", "name", "arguments",
    "tool_call_id", "reasoning_content", "reasoning", "refusal", "parameters", "description", "strict", "json_schema",
    "schema", "custom", "input", "detail", "audio", "file", "include_usage",
)  # fmt: skip
WORDS = (
    "text", "image_url", "refusal", "function", "custom", "input_audio", "auto", "none", "required", "json_schema",
    "json_object", "data:image/png;base64,iVBORw0KGgo=", "https://host/picture", "{}", '{"a":1.0}', "\ud83d", "é", "",
)  # fmt: skip
FIELDS = (
    "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop", "stream", "temperature", "top_p",
    "n", "seed", "logprobs", "response_format", "stream_options", "functions", "function_call", "logit_bias", "model",
)  # fmt: skip
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS), st.text(max_size=3))
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=2)), inner, max_size=4),
    ),
    max_leaves=8,
)
PARTS = st.fixed_dictionaries({"type": st.sampled_from(WORDS)}, optional={"text": LEAVES, "image_url": VALUES})
CALLS = st.fixed_dictionaries(
    {
        "id": st.text(max_size=3),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.just("bash"), "arguments": st.sampled_from(WORDS)}),
    }
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "system", "developer", "tool"))},
    optional={
        "content": st.one_of(st.none(), st.text(max_size=3), st.lists(PARTS, max_size=3)),
        "tool_calls": st.lists(CALLS, max_size=2),
        "tool_call_id": st.text(max_size=3),
        "reasoning_content": LEAVES,
    },
)
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, max_size=4)},
    optional={name: VALUES for name in ("tools", "tool_choice", "stop", "response_format", "stream_options")},
)


def is_answer(body: bytes) -> bool:
    request = HttpRequest(method="POST", path="/v1/chat/completions", query={}, headers={}, body=body)
    try:
        found: object = ChatDialect().parse(request)
    except OpenForgeError as error:
        return isinstance(error, DialectError) and 400 <= ChatDialect().failure(error).status < 500
    return isinstance(found, ParsedCall | HttpAnswer)


@settings(max_examples=120, deadline=None)
@given(body=st.one_of(BODIES, st.dictionaries(st.sampled_from(FIELDS), VALUES), VALUES))
def test_any_json_is_a_call_or_a_named_error(body: Any) -> None:
    assert is_answer(json.dumps(body).encode())


@settings(max_examples=100, deadline=None)
@given(body=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)))
def test_any_bytes_are_a_call_or_a_named_error(body: bytes) -> None:
    assert is_answer(body)


@settings(max_examples=40, deadline=None)
@given(bodies=st.lists(BODIES, min_size=2, max_size=3))
def test_what_is_remembered_of_earlier_bodies_changes_no_reading(bodies: list[Any]) -> None:
    memory = JsonMemory()
    sent: list[Any] = []
    for body in [*bodies, *bodies]:
        sent = sent + body["messages"]
        raw = json.dumps({**body, "messages": sent}).encode()
        assert reading(raw, memory) == reading(raw, None)


def reading(raw: bytes, memory: JsonMemory | None) -> object:
    try:
        return read_request(raw, memory)
    except DialectError as error:
        return (str(error), error.field)


@st.composite
def answers(draw: st.DrawFn) -> list[CallEvent]:
    """Reasoning, then text, then calls: what stands in one message of this format."""
    events: list[CallEvent] = [ReasoningDelta(text=text) for text in draw(st.lists(TEXTS, max_size=2))]
    events += [TextDelta(text=text) for text in draw(st.lists(TEXTS, max_size=2))]
    for index, name in enumerate(draw(st.lists(TEXTS, max_size=3))):
        events.append(ToolCallStarted(index=index, id=f"c{index}", name=name))
        events += [ToolArgumentsDelta(index=index, text=text) for text in draw(st.lists(TEXTS, max_size=2))]
        events.append(ToolCallEnded(index=index))
    return events


def assembled(chunks: list[Any]) -> dict[str, Any]:
    """What a client makes of the deltas."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in [choice["delta"] for chunk in chunks for choice in chunk["choices"]]:
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
    return message


@settings(max_examples=150, deadline=None)
@given(events=answers(), finish=st.sampled_from(Finish), include_usage=st.booleans())
def test_the_stream_and_the_plain_answer_say_the_same(
    events: list[CallEvent], finish: Finish, include_usage: bool
) -> None:
    renderer = ChatRenderer(model="m", include_usage=include_usage)
    end = CallFinished(finish=finish, usage=Usage(prompt_tokens=3, sampled_tokens=4))
    raw = b"".join(renderer.chunk(event) + renderer.idle() for event in (STARTED, *events, end))
    *chunks, done = events_of(raw)
    plain = json.loads(renderer.whole())
    (choice,) = plain["choices"]
    message = choice["message"]
    calls = [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls", ())
    ]
    said = {"content": message["content"] or "", "reasoning_content": message.get("reasoning_content", "")}
    assert done == "[DONE]"
    assert assembled(chunks) == {**said, "tool_calls": calls}
    reasons = [each["finish_reason"] for chunk in chunks for each in chunk["choices"] if each["finish_reason"]]
    assert reasons == [choice["finish_reason"]]
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")] == [plain["usage"]]
    assert {chunk["id"] for chunk in chunks} == {plain["id"]}


@settings(max_examples=60, deadline=None)
@given(events=answers(), at=st.integers(0, 12), status=st.sampled_from((400, 410, 500, 503, 504)))
def test_a_failure_at_any_place_is_an_error_and_never_an_end(events: list[CallEvent], at: int, status: int) -> None:
    renderer = ChatRenderer(model="m")
    failed = CallFailed(message="it broke", code="broken", http_status=status)
    *chunks, error = events_of(b"".join(renderer.chunk(event) for event in (STARTED, *events[:at], failed)))
    assert error["error"]["code"] == "broken"
    assert not any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()


@settings(max_examples=100, deadline=None)
@given(events=answers())
def test_an_answer_that_comes_back_is_the_turn_that_was_sent(events: list[CallEvent]) -> None:
    renderer = ChatRenderer(model="m")
    for event in (STARTED, *events, CallFinished(finish=Finish.STOP, usage=Usage(prompt_tokens=3, sampled_tokens=1))):
        renderer.chunk(event)
    turn = json.loads(renderer.whole())["choices"][0]["message"]
    body = {"messages": [{"role": "user", "content": "hi"}, turn, {"role": "user", "content": "on"}]}
    message = read_request(json.dumps(body).encode()).request.messages[1]
    assert message.role is Role.ASSISTANT
    assert message.text == "".join(event.text for event in events if isinstance(event, TextDelta))
    assert message.reasoning == "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    starts = [(event.id, event.name) for event in events if isinstance(event, ToolCallStarted)]
    assert [(call.id, call.name) for call in message.tool_calls] == starts
    for index, call in enumerate(message.tool_calls):
        pieces = [each.text for each in events if isinstance(each, ToolArgumentsDelta) and each.index == index]
        assert call.arguments == "".join(pieces)
