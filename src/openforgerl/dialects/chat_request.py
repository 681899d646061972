"""A Chat Completions body as a ModelRequest: tools, tool choice, sampling, and what is refused or passed over."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from openforgerl.dialects.chat_messages import read_messages
from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import Json, Number, read_json, write_json
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.errors import DialectError
from openforgerl.records import ModelRequest, Sampling, ToolSpec

_FIXED_TEMPLATE = "the chat template and its arguments are fixed by the server"
_NO_GRAMMAR = "answers are sampled without a grammar; ask for the format in a message"
_TEXT_ONLY = "this model reads and writes no audio"
_REFUSED = {
    "functions": "deprecated; send `tools`",
    "function_call": "deprecated; send `tool_choice`",
    "logit_bias": "it changes the distribution that is sampled; leave it out",
    "logprobs": "log-probs stay in the record; leave it out",
    "top_logprobs": "log-probs stay in the record; leave it out",
    "audio": _TEXT_ONLY,
    "prediction": "predicted outputs are not supported; leave it out",
    "web_search_options": "there is no server-side web search; offer a function tool",
    "best_of": "one answer a call; leave it out",
    "use_beam_search": "answers are sampled; leave it out",
    "chat_template": _FIXED_TEMPLATE,
    "chat_template_kwargs": _FIXED_TEMPLATE,
    "continue_final_message": "the policy starts each answer itself; leave it out",
    "echo": "the prompt is not sent back; leave it out",
    "ignore_eos": "an answer ends at its end-of-turn token; leave it out",
    "min_tokens": "an answer ends at its end-of-turn token; leave it out",
    "stop_token_ids": "send `stop` strings",
    "bad_words": "it changes the distribution that is sampled; leave it out",
    "logits_processors": "it changes the distribution that is sampled; leave it out",
    "grammar": _NO_GRAMMAR,
    "structured_outputs": _NO_GRAMMAR,
    "guided_json": _NO_GRAMMAR,
    "guided_regex": _NO_GRAMMAR,
    "guided_choice": _NO_GRAMMAR,
    "guided_grammar": _NO_GRAMMAR,
}
"""Fields that would change the meaning of the call, and the way out. null, false, 0 and empty say nothing."""

_READ = {
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "n", "response_format", "modalities",
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "stop", "max_tokens", "max_completion_tokens",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """The call, and how its answer is to be sent."""

    request: ModelRequest
    stream: bool
    include_usage: bool


def read_request(raw: bytes, memory: JsonMemory | None = None) -> ChatRequest:
    """Raises DialectError that names the field."""
    try:
        return _read(Fields.of(read_json(raw) if memory is None else memory.read(raw), ""))
    except RecursionError:
        raise DialectError("the body is nested too deeply; send a flatter JSON object") from None


def _read(body: Fields) -> ChatRequest:
    _refuse(body)
    ignored = {key for key in body.values.keys() - _READ - _REFUSED.keys() if body.get(key) is not None}
    tools = _tools(body, ignored)
    images: dict[str, bytes] = {}
    request = ModelRequest(
        messages=read_messages(body, images, ignored),
        images=images,
        output_schema=_output_schema(body),
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        sampling=_sampling(body),
        model=body.text("model") or "",
        ignored=tuple(sorted(ignored)),
    )
    options = Fields.of(body.get("stream_options") or {}, "stream_options")
    return ChatRequest(request=request, stream=body.flag("stream"), include_usage=options.flag("include_usage"))


def _refuse(body: Fields) -> None:
    for name, why in _REFUSED.items():
        if _says_something(body.get(name)):
            raise DialectError(f"{name} is refused: {why}", field=name, code="unsupported_parameter")
    wishes = (
        ("n", "expected 1: send one request for each answer", (body.integer("n", 1) or 1) > 1),
        (
            "modalities",
            'expected ["text"]',
            any(item != "text" for _, item in body.items("modalities")),
        ),
    )
    for field, why, asked in wishes:
        if asked:
            raise DialectError(f"{field}: {why}", field=field, code="unsupported_value")


def _output_schema(body: Fields) -> str:
    """JSON text; "" where any text will do."""
    wish = Fields.of(body.get("response_format") or {}, "response_format")
    kind = wish.text("type") or "text"
    if kind == "text":
        return ""
    if kind == "json_object":
        return '{"type": "object"}'
    if kind != "json_schema":
        raise wrong(wish.at("type"), '"text", "json_object" or "json_schema"', kind)
    schema = Fields.of(wish.get("json_schema"), wish.at("json_schema"))
    return write_json(Fields.of(schema.get("schema"), schema.at("schema")).values)


def _says_something(value: Json) -> bool:
    return float(value.literal) != 0 if isinstance(value, Number) else bool(value)


def _tools(body: Fields, ignored: set[str]) -> tuple[ToolSpec, ...]:
    """Function tools in order; a server-side tool (a type, no schema) cannot be run here and is left out, noted."""
    tools = body.each("tools", _tool)
    ignored.update(name for _, passed_over in tools for name in passed_over)
    return tuple(spec for spec, _ in tools if spec is not None)


def _tool(tool: Fields) -> tuple[ToolSpec | None, Set[str]]:
    """None for one that cannot be run here, and what was passed over."""
    kind = tool.text("type") or "function"
    if kind != "function":
        return None, {f"tools.{kind}"}
    function = Fields.of(tool.get("function"), tool.at("function"))
    name = function.text("name")
    if not name:
        raise wrong(function.at("name"), "the name of the function", function.get("name"))
    function.text("description")
    if function.get("parameters") is not None:
        Fields.of(function.get("parameters"), function.at("parameters"))
    ignored = {"tools.strict"} if function.flag("strict") else set()
    return ToolSpec(definition=write_json(function.values), name=name), ignored


def _tool_choice(body: Fields, tools: tuple[ToolSpec, ...]) -> str:
    value = body.get("tool_choice")
    if value is None or value in ("auto", "none"):
        return str(value or "auto")
    names = [tool.name for tool in tools]
    if value == "required" and names:
        return "required"
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if isinstance(name, str) and name in names:
        return name
    forms = '"auto", "none", "required" or {"type": "function", "function": {"name": ...}} with the name of a tool sent'
    raise wrong("tool_choice", forms, value)


def _sampling(body: Fields) -> Sampling:
    caps = [body.integer(name, 1) for name in ("max_tokens", "max_completion_tokens")]
    return Sampling(
        temperature=body.number("temperature", 0),
        top_p=body.number("top_p", 0, 1),
        top_k=body.integer("top_k", -1),
        min_p=body.number("min_p", 0, 1),
        presence_penalty=body.number("presence_penalty", -2, 2),
        frequency_penalty=body.number("frequency_penalty", -2, 2),
        repetition_penalty=body.number("repetition_penalty", 0),
        seed=body.integer("seed", -(2**63)),
        max_tokens=min((cap for cap in caps if cap is not None), default=None),
        stop=_stop(body),
    )


def _stop(body: Fields) -> tuple[str, ...]:
    value = body.get("stop")
    strings = [("stop", value)] if isinstance(value, str) else body.items("stop")
    for path, item in strings:
        if not isinstance(item, str) or not item:
            raise wrong(path, "a string that is not empty", item)
    return tuple(item for _, item in strings if isinstance(item, str))
