"""A Gemini body as a ModelRequest: contents, instructions, sampling, schema, and what is refused or passed over.

Passed over and noted: `safetySettings` and `labels` (nothing is filtered here), the budget of `thinkingConfig` (the
policy thinks as it was trained to), and mode VALIDATED of calling functions (no grammar is sampled under).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.gemini_parts import Notes, answered, camel, child, listed, plain_text, said
from openforgerl.dialects.gemini_tools import json_schema, read_choice, read_tools
from openforgerl.dialects.jsontext import Json, Number, read_json, write_json
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.dialects.turns import Piece, turns_of
from openforgerl.errors import DialectError
from openforgerl.records import Message, ModelRequest, Role, Sampling, ToolCall

_READ = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent", "model"}
_SAMPLING = {
    "temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "presencePenalty", "frequencyPenalty",
}  # fmt: skip
_SCHEMAS = ("responseJsonSchema", "_responseJsonSchema", "responseSchema")
_READ_CONFIG = _SAMPLING | set(_SCHEMAS) | {
    "candidateCount", "responseMimeType", "responseModalities", "thinkingConfig",
}  # fmt: skip
_REFUSED = {
    "responseLogprobs": "log-probs stay in the record; leave it out",
    "logprobs": "log-probs stay in the record; leave it out",
    "speechConfig": "this model speaks no audio; leave it out",
    "imageConfig": "this model makes no images; leave it out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiRequest:
    """The call, and how its answer is to be sent."""

    request: ModelRequest
    shows_thoughts: bool


@dataclass(frozen=True, slots=True)
class _Item:
    """One element of `contents`, read by itself."""

    messages: Sequence[Message]
    pieces: Sequence[Piece]
    """Of the model; then there are no messages."""
    is_model: bool
    notes: Notes


def read_request(raw: bytes, memory: JsonMemory | None = None, *, model: str = "") -> GeminiRequest:
    """Raises DialectError that names the field."""
    try:
        body = _body(raw, memory)
        request = replace(_read(body), model=model)
        if request.messages[-1].role is Role.ASSISTANT:
            why = "the conversation must end with a user turn or a function response"
            raise DialectError(f"contents: {why}", field="contents", code="unsupported_value")
        config = child(body, "generationConfig")
        return GeminiRequest(request=request, shows_thoughts=child(config, "thinkingConfig").flag("includeThoughts"))
    except RecursionError:
        raise DialectError("the body is nested too deeply; send a flatter JSON object") from None


def read_count(raw: bytes, memory: JsonMemory | None = None) -> ModelRequest:
    """The prompt that is to be counted: `contents`, or the whole request in `generateContentRequest`."""
    try:
        body = _body(raw, memory)
        whole = body.get("generateContentRequest")
        return _read(body if whole is None else child(body, "generateContentRequest"))
    except RecursionError:
        raise DialectError("the body is nested too deeply; send a flatter JSON object") from None


def _body(raw: bytes, memory: JsonMemory | None) -> Fields:
    return camel(Fields.of(read_json(raw) if memory is None else memory.read(raw), ""))


def _read(body: Fields) -> ModelRequest:
    if body.get("cachedContent"):
        why = "no content is cached by name here; send all contents in each request"
        raise DialectError(f"cachedContent is refused: {why}", field="cachedContent", code="unsupported_parameter")
    ignored = {key for key in body.values.keys() - _READ if body.get(key) is not None}
    config = child(body, "generationConfig")
    notes = Notes({}, ignored)
    notes.pass_over(config, _READ_CONFIG | _REFUSED.keys(), "generationConfig")
    notes.pass_over(child(config, "thinkingConfig"), {"includeThoughts"}, "generationConfig.thinkingConfig")
    images: dict[str, bytes] = {}
    messages = (*_instructions(body), *_messages(body, images, ignored))
    tools = read_tools(body, ignored)
    return ModelRequest(
        messages=messages,
        images=images,
        output_schema=_output_schema(config),
        tools=tools,
        tool_choice=read_choice(body, tools, ignored),
        sampling=_sampling(config),
        ignored=tuple(sorted(ignored)),
    )


def _instructions(body: Fields) -> list[Message]:
    text = plain_text(body, "systemInstruction")
    return [Message(role=Role.SYSTEM, text=text)] if text else []


def _messages(body: Fields, images: dict[str, bytes], ignored: set[str]) -> list[Message]:
    items = listed(body, "contents").each("contents", _item)
    if not items:
        raise wrong("contents", "a list of at least one content", body.get("contents"))
    found: list[Message] = []
    pieces: list[Piece] = []
    for place, item in enumerate(items):
        images.update(item.notes.images)
        ignored.update(item.notes.ignored)
        pieces += item.pieces
        ends_turn = item.is_model and (place + 1 == len(items) or not items[place + 1].is_model)
        if ends_turn:
            found += turns_of(pieces, between="")
            pieces = []
        found += item.messages
    return paired(found)


def _item(fields: Fields) -> _Item:
    content = camel(fields)
    role = content.text("role") or "user"
    notes = Notes({}, set())
    notes.pass_over(content, {"role", "parts"}, "contents")
    if role == "model":
        return _Item((), answered(content, notes), True, notes)
    if role not in ("user", "function"):
        raise wrong(content.at("role"), '"user", "model" or "function"', role)
    return _Item(said(content, notes), (), False, notes)


def paired(messages: Sequence[Message]) -> list[Message]:
    """Calls without an id get one by their place; a result without one answers the first open call of its name.

    The calls of one turn are open together, be they one message or, with text between them, several.
    """
    claimed = {message.tool_call_id for message in messages if message.role is Role.TOOL}
    found: list[Message] = []
    open_calls: list[tuple[str, str]] = []
    is_answered = True
    for message in _with_ids(messages):
        if message.role is not Role.ASSISTANT:
            is_answered = True
        elif message.tool_calls:
            open_calls = [] if is_answered else open_calls
            open_calls += [(call.id, call.name) for call in message.tool_calls]
            is_answered = False
        if message.role is Role.TOOL:
            asked = message.tool_call_id
            matching = [pair for pair in open_calls if (pair[0] == asked if asked else pair[0] not in claimed)]
            named = [pair for pair in matching if pair[1] == message.name] or matching
            if named:
                open_calls.remove(named[0])
                message = replace(message, tool_call_id=named[0][0])
        found.append(message)
    return found


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    given = {call.id for message in messages for call in message.tool_calls}
    if "" not in given:
        return list(messages)
    free = (name for name in (f"call{number}" for number in count()) if name not in given)
    return [replace(message, tool_calls=_named(message.tool_calls, free)) for message in messages]


def _named(calls: Sequence[ToolCall], free: Iterator[str]) -> tuple[ToolCall, ...]:
    return tuple(call if call.id else replace(call, id=next(free)) for call in calls)


def _output_schema(config: Fields) -> str:
    """JSON text; "" where any text will do."""
    for name, why in _REFUSED.items():
        if _says_something(config.get(name)):
            path = config.at(name)
            raise DialectError(f"{path} is refused: {why}", field=path, code="unsupported_parameter")
    if (config.integer("candidateCount", 1) or 1) > 1:
        path = config.at("candidateCount")
        why = "expected 1: send one request for each answer"
        raise DialectError(f"{path}: {why}", field=path, code="unsupported_value")
    for path, item in config.items("responseModalities"):
        if not isinstance(item, str) or item.upper() != "TEXT":
            raise wrong(path, '"TEXT"', item)
    kind = config.text("responseMimeType") or "text/plain"
    if kind not in ("text/plain", "application/json"):
        raise wrong(config.at("responseMimeType"), '"text/plain" or "application/json"', kind)
    name = next((name for name in _SCHEMAS if config.get(name) is not None), "")
    if kind == "text/plain" and name:
        path = config.at(name)
        why = 'a schema is followed in JSON only; send responseMimeType "application/json" beside it'
        raise DialectError(f"{path}: {why}", field=path, code="unsupported_value")
    if kind == "text/plain":
        return ""
    schema = Fields.of(config.get(name) if name else {}, config.at(name)).values
    return write_json(json_schema(schema) if name == "responseSchema" else schema)


def _says_something(value: Json) -> bool:
    return float(value.literal) != 0 if isinstance(value, Number) else bool(value)


def _sampling(config: Fields) -> Sampling:
    return Sampling(
        temperature=config.number("temperature", 0),
        top_p=config.number("topP", 0, 1),
        top_k=config.integer("topK", -1),
        presence_penalty=config.number("presencePenalty", -2, 2),
        frequency_penalty=config.number("frequencyPenalty", -2, 2),
        seed=config.integer("seed", -(2**63)),
        max_tokens=config.integer("maxOutputTokens", 1),
        stop=_stop(config),
    )


def _stop(config: Fields) -> tuple[str, ...]:
    found = []
    for path, item in config.items("stopSequences"):
        if not isinstance(item, str) or not item:
            raise wrong(path, "a string that is not empty", item)
        found.append(item)
    return tuple(found)
