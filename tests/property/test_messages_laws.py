"""The Messages dialect over random bodies and random answers: no crash, and two forms that say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages_stream import read_stream
from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.marks import signature_of
from openforgerl.dialects.messages import MessagesDialect
from openforgerl.dialects.messages_events import MessagesRenderer
from openforgerl.dialects.messages_request import read_request
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.errors import DialectError, OpenForgeError
from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallFinished,
    CallStarted,
    Finish,
    Message,
    ReasoningDelta,
    Role,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from random_answers import USAGES, answers, text_of

NAMES = (
    "type", "role", "content", "text", "source", "data", "media_type", "tool_use_id", "is_error", "id", "name", "input",
    "thinking", "signature", "title", "context", "url", "clear_at", "tool_name", "tool", "cache_control", "citations",
    "input_schema", "description", "strict", "disable_parallel_tool_use", "format", "schema", "effort",
)  # fmt: skip
WORDS = (
    "text", "image", "document", "search_result", "tool_result", "tool_use", "thinking", "redacted_thinking",
    "tool_reference", "tool_addition", "server_tool_use", "web_search_tool_result", "compaction", "base64", "url",
    "user", "assistant", "system", "image/png", "text/plain", "iVBORw0KGgo=", "auto", "any", "tool", "none",
    "disabled", "json_schema", "next_user_message", signature_of("call"), "\ud83d", "é", "",
)  # fmt: skip
FIELDS = (
    "messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "stream", "temperature", "top_k",
    "thinking", "output_config", "output_format", "context_management", "container", "mcp_servers", "model",
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
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(WORDS)}, optional={name: VALUES for name in NAMES if name not in ("type", "role")}
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "system"))},
    optional={"content": st.one_of(st.text(max_size=3), st.lists(BLOCKS, max_size=4)), "clear_at": LEAVES},
)
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, max_size=4), "max_tokens": st.just(9)},
    optional={name: VALUES for name in ("system", "tool_choice", "thinking", "output_config", "context_management")},
)


def answer_to(body: bytes, path: str) -> object:
    request = HttpRequest(method="POST", path=path, query={}, headers={}, body=body)
    try:
        return MessagesDialect().parse(request)
    except DialectError as error:
        return error


def is_answer(found: object) -> bool:
    if isinstance(found, OpenForgeError):
        return 400 <= MessagesDialect().failure(found).status < 500
    return isinstance(found, ParsedCall | CountCall | HttpAnswer)


PATHS = pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])


@PATHS
@settings(max_examples=150, deadline=None)
@given(body=st.one_of(BODIES, st.dictionaries(st.sampled_from(FIELDS), VALUES), VALUES))
def test_any_json_is_a_call_or_a_named_error(path: str, body: Any) -> None:
    assert is_answer(answer_to(json.dumps(body).encode(), path))


@PATHS
@settings(max_examples=100, deadline=None)
@given(body=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)))
def test_any_bytes_are_a_call_or_a_named_error(path: str, body: bytes) -> None:
    assert is_answer(answer_to(body, path))


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


@settings(max_examples=150, deadline=None)
@given(events=answers(), finish=st.sampled_from(Finish), usage=USAGES, idle=st.booleans())
def test_the_stream_and_the_plain_answer_say_the_same(
    events: list[CallEvent], finish: Finish, usage: Usage, idle: bool
) -> None:
    renderer = MessagesRenderer(model="m")
    started = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=usage.prompt_tokens)
    end = CallFinished(finish=finish, usage=usage, stop_string="s" if finish is Finish.STOP_STRING else None)
    raw = b"".join(renderer.chunk(event) + (renderer.idle() if idle else b"") for event in (started, *events))
    plain = json.loads(renderer.whole()) if (raw := raw + renderer.chunk(end)) else {}
    assert read_stream(raw).message == plain
    said = {kind: "".join(block[kind] for block in plain["content"] if kind in block) for kind in ("text", "thinking")}
    assert said == {"text": text_of(events, TextDelta), "thinking": text_of(events, ReasoningDelta)}
    starts = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [(block["id"], block["name"]) for block in plain["content"] if block["type"] == "tool_use"] == [
        (start.id, start.name) for start in starts
    ]
    assert plain["usage"]["input_tokens"] + plain["usage"]["cache_read_input_tokens"] == usage.prompt_tokens


@settings(max_examples=60, deadline=None)
@given(events=answers(), at=st.integers(0, 12), status=st.sampled_from((400, 410, 500, 503, 504)))
def test_a_failure_at_any_place_is_an_error_and_never_an_end(events: list[CallEvent], at: int, status: int) -> None:
    renderer = MessagesRenderer(model="m")
    started = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=3)
    failed = CallFailed(message="it broke", code="broken", http_status=status)
    reader = read_stream(b"".join(renderer.chunk(event) for event in (started, *events[:at], failed)))
    assert reader.error is not None
    assert not reader.ended
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()


@settings(max_examples=100, deadline=None)
@given(events=answers())
def test_an_answer_that_comes_back_is_the_turn_that_was_sent(events: list[CallEvent]) -> None:
    renderer = MessagesRenderer(model="m")
    for event in (CallStarted(call_id="abc", model="m", created=5, prompt_tokens=3), *events):
        renderer.chunk(event)
    renderer.chunk(CallFinished(finish=Finish.STOP, usage=Usage(prompt_tokens=3, sampled_tokens=1)))
    content = json.loads(renderer.whole())["content"]
    user = {"role": "user", "content": "hi"}
    body = {"max_tokens": 1, "messages": [user, {"role": "assistant", "content": content}, user]}
    turn: tuple[Message, ...] = read_request(json.dumps(body).encode()).request.messages[1:-1]
    assert {message.role for message in turn} == {Role.ASSISTANT}
    assert "".join(message.text for message in turn) == text_of(events, TextDelta)
    assert "".join(message.reasoning for message in turn) == text_of(events, ReasoningDelta)
    assert turn[0].reasoning_mark == ("abc" if turn[0].reasoning else "")
    calls = [call.id for message in turn for call in message.tool_calls]
    assert calls == [event.id for event in events if isinstance(event, ToolCallStarted)]
