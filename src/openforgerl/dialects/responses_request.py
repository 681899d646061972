"""A Responses body as a ModelRequest: instructions, sampling, schema, and what is refused or passed over.

Passed over and noted: `reasoning.effort` and `text.verbosity` (the policy thinks and writes as it was trained to),
`parallel_tool_calls: false` (nothing forces it), `truncation` and `context_management` (the prompt is what was sent),
`store` (nothing can be fetched later), `service_tier` and caching hints (there is one model).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import Json, Number, read_json, write_json
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.dialects.responses_calls import Route
from openforgerl.dialects.responses_choice import read_choice
from openforgerl.dialects.responses_items import read_input
from openforgerl.dialects.responses_tools import Entry, read_tools, routes_of
from openforgerl.errors import DialectError
from openforgerl.records import Message, ModelRequest, Role, Sampling

_REFUSED = {
    "previous_response_id": "this server keeps no responses; send the whole conversation as `input`",
    "conversation": "this server keeps no conversations; send the whole conversation as `input`",
    "prompt": "this server keeps no prompts; send their text as `instructions` and `input`",
    "background": "an answer is given while the client waits; leave it out",
    "top_logprobs": "log-probs stay in the record; leave it out",
    "logprobs": "log-probs stay in the record; leave it out",
    "messages": "this is the Responses API; send `input`",
    "max_tokens": "this is the Responses API; send `max_output_tokens`",
    "max_completion_tokens": "this is the Responses API; send `max_output_tokens`",
    "response_format": "this is the Responses API; send `text.format`",
    "stop": "the Responses API has no stop strings; leave it out",
    "logit_bias": "it changes the distribution that is sampled; leave it out",
}
"""Fields that would change the meaning of the call, and the way out. null, false, 0 and empty say nothing."""

_READ = {
    "model", "input", "instructions", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "text",
    "reasoning", "include", "store", "truncation", "max_output_tokens", "temperature", "top_p", "top_k", "min_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
}  # fmt: skip
_INCLUDED = ("reasoning.encrypted_content", "message.input_image.image_url", "computer_call_output.output.image_url")
"""What is always there."""
_ECHOED: Mapping[str, object] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, and what it says where nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """The call, and how its answer is to be sent."""

    request: ModelRequest
    stream: bool
    summarizes: bool
    """A summary of the reasoning was asked for: the reasoning is sent as one."""
    routes: Mapping[str, Route]
    echo: Mapping[str, object]
    """What the response repeats."""


def read_request(raw: bytes, memory: JsonMemory | None = None) -> ResponsesRequest:
    """Raises DialectError that names the field."""
    try:
        return _read(Fields.of(read_json(raw) if memory is None else memory.read(raw), ""))
    except RecursionError:
        raise DialectError("the body is nested too deeply; send a flatter JSON object") from None


def _read(body: Fields) -> ResponsesRequest:
    for name, why in _REFUSED.items():
        if _says_something(body.get(name)):
            raise DialectError(f"{name} is refused: {why}", field=name, code="unsupported_parameter")
    ignored = {key for key in body.values.keys() - _READ - _REFUSED.keys() if body.get(key) not in (None, {}, [])}
    reasoning = Fields.of(body.get("reasoning") or {}, "reasoning")
    text = Fields.of(body.get("text") or {}, "text")
    _note(body, reasoning, text, ignored)
    all_offered = read_tools(body, ignored)
    choice, offered = read_choice(body, all_offered)
    read = read_input(body, ignored)
    instructions = body.text("instructions") or ""
    first = (Message(role=Role.SYSTEM, text=instructions),) if instructions else ()
    request = ModelRequest(
        messages=(*first, *read.messages),
        images=read.images,
        output_schema=_output_schema(text),
        tools=offered.specs,
        tool_choice=choice,
        sampling=_sampling(body),
        model=body.text("model") or "",
        ignored=tuple(sorted(ignored)),
    )
    return ResponsesRequest(
        request=request,
        stream=body.flag("stream"),
        summarizes=bool(reasoning.text("summary") or reasoning.text("generate_summary")),
        routes=routes_of([*(tool for entry in all_offered.entries for tool in entry.tools), *read.tools]),
        echo=_echo(body, all_offered.entries),
    )


def _says_something(value: Json) -> bool:
    return float(value.literal) != 0 if isinstance(value, Number) else bool(value)


def _note(body: Fields, reasoning: Fields, text: Fields, ignored: set[str]) -> None:
    """Wishes within the fields that are read, which are passed over."""
    for path, item in body.items("include"):
        if not isinstance(item, str):
            raise wrong(path, "a string", item)
        if item == "message.output_text.logprobs":
            raise DialectError(
                f"{path}: {item!r} is refused: log-probs stay in the record; leave it out",
                field="include",
                code="unsupported_value",
            )
        if item not in _INCLUDED:
            ignored.add(f"include.{item[:40]}")
    for fields, known in ((reasoning, {"summary", "generate_summary"}), (text, {"format"})):
        rest = fields.values.keys() - known
        ignored.update(f"{fields.path}.{key}" for key in rest if fields.get(key) is not None)
    if body.get("parallel_tool_calls") is not None and not body.flag("parallel_tool_calls"):
        ignored.add("parallel_tool_calls")
    if body.flag("store"):
        ignored.add("store")
    if (body.text("truncation") or "disabled") != "disabled":
        ignored.add("truncation")


def _output_schema(text: Fields) -> str:
    """JSON text; "" where any text will do."""
    wish = Fields.of(text.get("format") or {}, text.at("format"))
    kind = wish.text("type") or "text"
    if kind == "text":
        return ""
    if kind == "json_object":
        return '{"type": "object"}'
    if kind != "json_schema":
        raise wrong(wish.at("type"), '"text", "json_object" or "json_schema"', kind)
    return write_json(Fields.of(wish.get("schema"), wish.at("schema")).values)


def _sampling(body: Fields) -> Sampling:
    return Sampling(
        temperature=body.number("temperature", 0),
        top_p=body.number("top_p", 0, 1),
        top_k=body.integer("top_k", -1),
        min_p=body.number("min_p", 0, 1),
        presence_penalty=body.number("presence_penalty", -2, 2),
        frequency_penalty=body.number("frequency_penalty", -2, 2),
        repetition_penalty=body.number("repetition_penalty", 0),
        seed=body.integer("seed", -(2**63)),
        max_tokens=body.integer("max_output_tokens", 1),
    )


def _echo(body: Fields, entries: Iterable[Entry]) -> Mapping[str, object]:
    sent = {
        name: default if (value := body.get(name)) is None else orjson.Fragment(write_json(value))
        for name, default in _ECHOED.items()
    }
    return {**sent, "tools": [orjson.Fragment(entry.written) for entry in entries]}
