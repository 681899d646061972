"""The Gemini dialect over random bodies and random answers: no crash, and three forms that say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_stream import read_stream
from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.gemini import GeminiDialect
from openforgerl.dialects.gemini_events import GeminiRenderer
from openforgerl.dialects.gemini_request import read_request
from openforgerl.dialects.marks import signature_of
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.errors import DialectError, OpenForgeError
from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallFinished,
    Finish,
    Message,
    ReasoningDelta,
    Role,
    TextDelta,
    ToolCallStarted,
    Usage,
)
from random_answers import STARTED, answers, text_of

NAMES = (
    "role", "parts", "text", "thought", "thoughtSignature", "thought_signature", "inlineData", "inline_data",
    "fileData", "mimeType", "mime_type", "data", "functionCall", "function_call", "functionResponse",
    "function_response", "id", "name", "args", "response", "output", "error", "executableCode", "code",
    "toolCall", "functionDeclarations", "parameters", "parametersJsonSchema", "type", "properties", "items",
    "mode", "allowedFunctionNames", "functionCallingConfig", "candidateCount", "topP", "stopSequences",
    "responseMimeType", "responseSchema", "thinkingConfig", "includeThoughts",
)  # fmt: skip
WORDS = (
    "user", "model", "function", "text", "image/png", "iVBORw0KGgo=", "_-8", "ANY", "AUTO", "NONE", "VALIDATED",
    "application/json", "OBJECT", "bash", signature_of("call"), "\ud83d", "é", "",
)  # fmt: skip
FIELDS = (
    "contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config", "generationConfig",
    "generation_config", "cachedContent", "safetySettings", "generateContentRequest",
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
CALLS = st.fixed_dictionaries({"name": st.sampled_from(("bash", "read"))}, optional={"id": LEAVES, "args": VALUES})
PARTS = st.one_of(
    st.fixed_dictionaries(
        {"text": st.text(max_size=3)}, optional={"thought": st.booleans(), "thoughtSignature": LEAVES}
    ),
    st.fixed_dictionaries({"functionCall": CALLS}),
    st.fixed_dictionaries(
        {
            "functionResponse": st.fixed_dictionaries(
                {"name": st.just("bash")}, optional={"response": VALUES, "id": LEAVES}
            )
        }
    ),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2),
)
CONTENTS = st.fixed_dictionaries(
    {"parts": st.lists(PARTS, max_size=4)}, optional={"role": st.sampled_from(("user", "model", "function"))}
)
BODIES = st.fixed_dictionaries(
    {"contents": st.lists(CONTENTS, max_size=5)},
    optional={name: VALUES for name in ("systemInstruction", "tools", "toolConfig", "generationConfig")},
)


def answer_to(body: bytes, method: str) -> object:
    path = f"/v1beta/models/m:{method}"
    try:
        return GeminiDialect().parse(HttpRequest(method="POST", path=path, query={}, headers={}, body=body))
    except DialectError as error:
        return error


def is_answer(found: object) -> bool:
    if isinstance(found, OpenForgeError):
        return 400 <= GeminiDialect().failure(found).status < 500
    return isinstance(found, ParsedCall | CountCall | HttpAnswer)


METHODS = pytest.mark.parametrize("method", ["generateContent", "countTokens"])


@METHODS
@settings(max_examples=150, deadline=None)
@given(body=st.one_of(BODIES, st.dictionaries(st.sampled_from(FIELDS), VALUES), VALUES))
def test_any_json_is_a_call_or_a_named_error(method: str, body: Any) -> None:
    assert is_answer(answer_to(json.dumps(body).encode(), method))


@METHODS
@settings(max_examples=100, deadline=None)
@given(body=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)))
def test_any_bytes_are_a_call_or_a_named_error(method: str, body: bytes) -> None:
    assert is_answer(answer_to(body, method))


@settings(max_examples=60, deadline=None)
@given(
    path=st.one_of(st.text("/:v1betmodlsgenraC.?", max_size=30), st.text(max_size=12)),
    verb=st.sampled_from(("GET", "POST")),
)
def test_any_path_that_is_claimed_is_answered(path: str, verb: str) -> None:
    request = HttpRequest(method=verb, path=path, query={}, headers={"x-goog-api-key": "k"}, body=b"{}")
    if GeminiDialect().claims(request):
        try:
            found: object = GeminiDialect().parse(request)
        except DialectError as error:
            found = error
        assert is_answer(found)


@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(BODIES, min_size=2, max_size=3))
def test_what_is_remembered_of_earlier_bodies_changes_no_reading(bodies: list[Any]) -> None:
    memory = JsonMemory()
    sent: list[Any] = []
    for body in [*bodies, *bodies]:
        sent = sent + body["contents"]
        raw = json.dumps({**body, "contents": sent}).encode()
        assert reading(raw, memory) == reading(raw, None)


def reading(raw: bytes, memory: JsonMemory | None) -> object:
    try:
        return read_request(raw, memory)
    except DialectError as error:
        return (str(error), error.field)


@st.composite
def called_turns(draw: st.DrawFn) -> list[tuple[str, str]]:
    """(name, id) of each call of a turn; "" is no id."""
    names = draw(st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=4))
    ids = draw(st.lists(st.sampled_from(("call0", "call1", "call2", "x")), unique=True, min_size=4))
    return [(name, draw(st.sampled_from(("", id_)))) for name, id_ in zip(names, ids, strict=False)]


@settings(max_examples=150, deadline=None)
@given(turns=st.lists(called_turns(), min_size=1, max_size=3), data=st.data())
def test_every_result_answers_a_call_of_its_turn_and_name_and_no_two_answer_one(
    turns: list[list[tuple[str, str]]], data: st.DataObject
) -> None:
    contents: list[dict[str, Any]] = [{"parts": [{"text": "hi"}]}]
    for calls in turns:
        parts: list[dict[str, Any]] = []
        for name, call_id in calls:
            parts += [{"text": "so"}] * data.draw(st.integers(0, 1))
            parts.append({"functionCall": {"name": name, "args": {}, **({"id": call_id} if call_id else {})}})
        results = [
            {"functionResponse": {"name": name, "response": {}, **({"id": call_id} if call_id else {})}}
            for name, call_id in data.draw(st.permutations(calls))
        ]
        contents += [{"role": "model", "parts": parts}, {"role": "user", "parts": results}]
    rest = list(read_request(json.dumps({"contents": contents}).encode()).request.messages[1:])
    for calls in turns:
        cut = next(place for place, message in enumerate(rest) if message.role is Role.TOOL)
        made = {call.id: call.name for message in rest[:cut] for call in message.tool_calls}
        answers = rest[cut : cut + len(calls)]
        assert {message.tool_call_id: message.name for message in answers} == made
        assert [name for name, _ in calls] == list(made.values())
        rest = rest[cut + len(calls) :]
    assert rest == []


@settings(max_examples=150, deadline=None)
@given(events=answers(), finish=st.sampled_from(Finish), is_sse=st.booleans(), thoughts=st.booleans())
def test_the_streams_and_the_plain_answer_say_the_same(
    events: list[CallEvent], finish: Finish, is_sse: bool, thoughts: bool
) -> None:
    renderer = GeminiRenderer(model="m", shows_thoughts=thoughts, is_sse=is_sse)
    end = CallFinished(finish=finish, usage=Usage(prompt_tokens=3, sampled_tokens=2, cached_tokens=1))
    raw = b"".join(renderer.chunk(event) + renderer.idle() for event in (STARTED, *events, end))
    plain = json.loads(renderer.whole())
    assert read_stream(raw, is_sse=is_sse).whole() == plain
    parts = plain["candidates"][0]["content"]["parts"]
    said = {True: "", False: ""}
    for part in parts:
        said[bool(part.get("thought"))] += part.get("text", "")
    assert said == {False: text_of(events, TextDelta), True: text_of(events, ReasoningDelta) if thoughts else ""}
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    starts = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [(call["id"], call["name"]) for call in calls] == [(start.id, start.name) for start in starts]


@settings(max_examples=60, deadline=None)
@given(events=answers(), at=st.integers(0, 12), is_sse=st.booleans(), status=st.sampled_from((400, 410, 500, 503, 504)))
def test_a_failure_at_any_place_is_an_error_and_never_an_end(
    events: list[CallEvent], at: int, is_sse: bool, status: int
) -> None:
    renderer = GeminiRenderer(model="m", is_sse=is_sse)
    failed = CallFailed(message="it broke", code="broken", http_status=status)
    reader = read_stream(b"".join(map(renderer.chunk, (STARTED, *events[:at], failed))), is_sse=is_sse)
    assert reader.error is not None
    assert reader.error["code"] == status
    assert not reader.ended
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()


@settings(max_examples=100, deadline=None)
@given(events=answers(), thoughts=st.booleans(), in_chunks=st.booleans())
def test_an_answer_that_comes_back_is_the_turn_that_was_sent(
    events: list[CallEvent], thoughts: bool, in_chunks: bool
) -> None:
    renderer = GeminiRenderer(model="m", shows_thoughts=thoughts, is_sse=False)
    end = CallFinished(finish=Finish.STOP, usage=Usage(prompt_tokens=3, sampled_tokens=1))
    raw = b"".join(map(renderer.chunk, (STARTED, *events, end)))
    answers = json.loads(raw) if in_chunks else [json.loads(renderer.whole())]
    contents = [answer["candidates"][0]["content"] for answer in answers]
    user = {"role": "user", "parts": [{"text": "hi"}]}
    turn: tuple[Message, ...] = read_request(
        json.dumps({"contents": [user, *contents, user]}).encode()
    ).request.messages[1:-1]
    assert {message.role for message in turn} == {Role.ASSISTANT}
    assert "".join(message.text for message in turn) == text_of(events, TextDelta)
    reasoning = text_of(events, ReasoningDelta)
    assert "".join(message.reasoning for message in turn) == (reasoning if thoughts else "")
    is_marked = bool(reasoning) and len(events) > sum(isinstance(event, ReasoningDelta) for event in events)
    assert [message.reasoning_mark for message in turn if message.reasoning_mark] == ["abc"] * is_marked
    calls = [call.id for message in turn for call in message.tool_calls]
    assert calls == [event.id for event in events if isinstance(event, ToolCallStarted)]
