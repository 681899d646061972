"""The Responses dialect over random bodies and random answers: no crash, and two forms that say the same."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.marks import signature_of
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.dialects.responses import ResponsesDialect
from openforgerl.dialects.responses_calls import FORMS, Route, arguments_of, input_of
from openforgerl.dialects.responses_events import ResponsesRenderer
from openforgerl.dialects.responses_request import read_request
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
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStarted,
    Usage,
)
from openforgerl.tokens.canonical import canonical_calls
from random_answers import ODD_ARGUMENTS, TEXTS, USAGES, answers, text_of
from responses_stream import read_stream

NAMES = (
    "type", "role", "content", "text", "id", "call_id", "name", "namespace", "arguments", "input", "output", "action",
    "operation", "actions", "summary", "encrypted_content", "image_url", "file_id", "refusal", "status", "tools",
    "parameters", "description", "strict", "format", "definition", "syntax", "environment", "execution", "schema",
    "effort", "mode", "defer_loading", "stdout", "outcome", "exit_code", "command", "results",
)  # fmt: skip
ITEMS = (
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
    "apply_patch_call_output", "computer_call", "computer_call_output", "tool_search_call", "tool_search_output",
    "additional_tools", "agent_message", "configuration_update", "web_search_call", "mcp_list_tools", "compaction",
)  # fmt: skip
WORDS = (
    "input_text", "output_text", "input_image", "input_file", "refusal", "summary_text", "reasoning_text", "function",
    "custom", "namespace", "local_shell", "shell", "apply_patch", "computer", "tool_search", "client", "web_search",
    "allowed_tools", "auto", "required", "none", "user", "assistant", "system", "developer", "json_schema", "exit",
    "data:image/png;base64,iVBORw0KGgo=", signature_of("call"), "\ud83d", "é", "",
)  # fmt: skip
FIELDS = (
    "input", "instructions", "tools", "tool_choice", "max_output_tokens", "stream", "temperature", "top_p", "reasoning",
    "text", "include", "store", "metadata", "truncation", "background", "previous_response_id", "model",
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
PARTS = st.fixed_dictionaries({"type": st.sampled_from(WORDS)}, optional={"text": LEAVES, "image_url": LEAVES})
INPUT = st.fixed_dictionaries(
    {"type": st.sampled_from(ITEMS), "call_id": st.just("c"), "name": st.just("f"), "role": st.sampled_from(WORDS)},
    optional={
        "content": st.one_of(st.text(max_size=3), st.lists(PARTS, max_size=3), VALUES),
        **{name: VALUES for name in NAMES if name not in ("type", "role", "content", "call_id", "name")},
    },
)
TOOLS = st.fixed_dictionaries(
    {"type": st.sampled_from(WORDS), "name": st.sampled_from(("f", "g", "a__b"))},
    optional={name: VALUES for name in ("parameters", "description", "format", "strict", "tools", "environment")},
)
BODIES = st.fixed_dictionaries(
    {"input": st.lists(INPUT, min_size=1, max_size=4)},
    optional={
        "tools": st.lists(TOOLS, max_size=3),
        **{name: VALUES for name in ("tool_choice", "instructions", "reasoning", "text", "include", "metadata")},
    },
)


def answer_to(body: bytes, path: str) -> object:
    request = HttpRequest(method="POST", path=path, query={}, headers={}, body=body)
    try:
        return ResponsesDialect().parse(request)
    except DialectError as error:
        return error


def is_answer(found: object) -> bool:
    if isinstance(found, OpenForgeError):
        return 400 <= ResponsesDialect().failure(found).status < 500
    if isinstance(found, ParsedCall):
        found.renderer.chunk(CallStarted(call_id="a", model="m", created=5, prompt_tokens=3))
        found.renderer.chunk(CallFinished(finish=Finish.STOP, usage=Usage(prompt_tokens=3, sampled_tokens=1)))
        return isinstance(json.loads(found.renderer.whole()), dict)
    return isinstance(found, CountCall | HttpAnswer)


PATHS = pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])


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
        sent = sent + body["input"]
        raw = json.dumps({**body, "input": sent}).encode()
        assert reading(raw, memory) == reading(raw, None)


def reading(raw: bytes, memory: JsonMemory | None) -> object:
    try:
        found = read_request(raw, memory)
        return (found.request, found.routes, found.stream, found.summarizes)
    except DialectError as error:
        return (str(error), error.field)


ROUTES = {
    "patch": Route(kind="custom", name="patch"),
    "crm__read": Route(name="read", namespace="crm"),
    "crm__write": Route(kind="custom", name="write", namespace="crm"),
    **{form.name: Route(kind=kind, name=form.name) for kind, form in FORMS.items()},
}
OBJECTS = st.one_of(
    st.dictionaries(TEXTS, st.one_of(st.integers(), TEXTS), max_size=2),
    st.fixed_dictionaries({"input": TEXTS}),
    st.fixed_dictionaries(
        {},
        optional={
            "command": st.lists(TEXTS, max_size=2),
            "commands": st.lists(TEXTS, min_size=1, max_size=2),
            "timeout_ms": st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.none()),
            "env": st.dictionaries(TEXTS, TEXTS, max_size=1),
            "type": st.sampled_from(("exec", "create_file", "delete_file")),
            "path": TEXTS,
            "diff": TEXTS,
            "action": st.fixed_dictionaries({"type": TEXTS}),
            "actions": st.lists(st.fixed_dictionaries({"type": TEXTS}), max_size=2),
        },
    ),
).map(json.dumps)
ARGUMENTS = st.one_of(OBJECTS, ODD_ARGUMENTS)
ANSWERS = partial(answers, st.one_of(st.sampled_from(sorted(ROUTES)), TEXTS))


def calls_of(events: list[CallEvent]) -> list[ToolCall]:
    starts = [event for event in events if isinstance(event, ToolCallStarted)]
    pieces = [event for event in events if isinstance(event, ToolArgumentsDelta)]
    return [
        ToolCall(
            id=start.id,
            name=start.name,
            arguments="".join(piece.text for piece in pieces if piece.index == start.index),
        )
        for start in starts
    ]


@settings(max_examples=200, deadline=None)
@given(
    events=ANSWERS(ARGUMENTS),
    finish=st.sampled_from(Finish),
    usage=USAGES,
    idle=st.booleans(),
    summarizes=st.booleans(),
)
def test_the_stream_and_the_plain_answer_say_the_same(
    events: list[CallEvent], finish: Finish, usage: Usage, idle: bool, summarizes: bool
) -> None:
    renderer = ResponsesRenderer(model="m", routes=ROUTES, summarizes=summarizes)
    started = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=usage.prompt_tokens)
    end = CallFinished(finish=finish, usage=usage, stop_string="s" if finish is Finish.STOP_STRING else None)
    raw = b"".join(renderer.chunk(event) + (renderer.idle() if idle else b"") for event in (started, *events))
    raw += renderer.chunk(end)
    plain = json.loads(renderer.whole())
    assert read_stream(raw).response == plain
    parts = [part for item in plain["output"] for name in ("content", "summary") for part in item.get(name, [])]
    said = {kind: "".join(part["text"] for part in parts if part["type"] in kind) for kind in (TEXT, REASONING)}
    assert said == {TEXT: text_of(events, TextDelta), REASONING: text_of(events, ReasoningDelta)}
    calls = [item["call_id"] for item in plain["output"] if "call_id" in item]
    assert calls == [call.id for call in calls_of(events)]
    assert plain["usage"]["total_tokens"] == usage.prompt_tokens + usage.sampled_tokens


TEXT, REASONING = ("output_text",), ("reasoning_text", "summary_text")


@settings(max_examples=60, deadline=None)
@given(events=ANSWERS(ARGUMENTS), at=st.integers(0, 12), status=st.sampled_from((400, 410, 429, 500, 503, 504)))
def test_a_failure_at_any_place_is_an_error_and_never_an_end(events: list[CallEvent], at: int, status: int) -> None:
    renderer = ResponsesRenderer(model="m", routes=ROUTES)
    started = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=3)
    failed = CallFailed(message="it broke", code="broken", http_status=status)
    reader = read_stream(b"".join(renderer.chunk(event) for event in (started, *events[:at], failed)))
    assert reader.response is not None
    assert (reader.response["status"], reader.response["error"]["message"]) == ("failed", "it broke")
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()


@settings(max_examples=200, deadline=None)
@given(events=ANSWERS(OBJECTS), summarizes=st.booleans())
def test_an_answer_that_comes_back_is_the_turn_that_was_sent(events: list[CallEvent], summarizes: bool) -> None:
    """Calls by their canonical content too: that is how they are recognised."""
    renderer = ResponsesRenderer(model="m", routes=ROUTES, summarizes=summarizes)
    for event in (CallStarted(call_id="abc", model="m", created=5, prompt_tokens=3), *events):
        renderer.chunk(event)
    renderer.chunk(CallFinished(finish=Finish.STOP, usage=Usage(prompt_tokens=3, sampled_tokens=1)))
    user = {"role": "user", "content": "hi"}
    body = {"input": [user, *json.loads(renderer.whole())["output"], user]}
    turn: tuple[Message, ...] = read_request(json.dumps(body).encode()).request.messages[1:-1]
    assert {message.role for message in turn} <= {Role.ASSISTANT}
    assert "".join(message.text for message in turn) == text_of(events, TextDelta)
    assert "".join(message.reasoning for message in turn) == text_of(events, ReasoningDelta)
    assert [message.reasoning_mark for message in turn if message.reasoning] == (
        ["abc"] if text_of(events, ReasoningDelta) else []
    )
    back, sent = [call for message in turn for call in message.tool_calls], calls_of(events)
    assert [call.id for call in back] == [call.id for call in sent]
    recorded, came = canonical_calls(sent), canonical_calls(back)
    assert all(one.agrees(other) for one, other in zip(recorded, came, strict=True))


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(TEXTS, OBJECTS, ARGUMENTS.map(input_of), st.just("")))
def test_a_freeform_input_survives_being_arguments(text: str) -> None:
    assert input_of(arguments_of(text)) == text
