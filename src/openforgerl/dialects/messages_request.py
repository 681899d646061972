"""A Messages body as a ModelRequest: system, sampling, schema, and what is refused or passed over.

Passed over and noted: `thinking` and `output_config.effort` (the policy thinks as it was trained to); what
`context_management` would clear (the prompt is what was sent); `fallbacks`, `speed`, `service_tier` (there is one
model); `strict` of a tool (no grammar is sampled under).
"""

from __future__ import annotations

from dataclasses import dataclass

from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import read_json, write_json
from openforgerl.dialects.messages_content import Blocks
from openforgerl.dialects.messages_history import read_messages, read_system
from openforgerl.dialects.messages_tools import read_choice, read_tools
from openforgerl.dialects.rereading import JsonMemory
from openforgerl.errors import DialectError
from openforgerl.records import ModelRequest, Sampling

_REFUSED = {
    "container": "no code runs here; offer the skills and tools of the container as tools with an input_schema",
    "mcp_servers": "the server connects to no MCP server; connect the harness and offer the tools with an input_schema",
    "compaction": "histories are not summarized here; ask for a summary in a user message",
    "thread": "no conversation is kept here; send all messages in each request",
}
"""Fields that would change the meaning of the call, and the way out. null and empty say nothing."""

_READ = {
    "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k", "tools",
    "tool_choice", "output_config", "output_format",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    """The call, and how its answer is to be sent."""

    request: ModelRequest
    stream: bool
    shows_thinking: bool
    """False only where `thinking` is "disabled": such a client may read the first block as text. Where nothing was
    said, the blocks are sent, as models do that think by themselves: only what is sent can come back, and only
    reasoning that comes back stays in the prompt while tools are called.
    """


def read_request(raw: bytes, memory: JsonMemory | None = None, *, counts: bool = False) -> MessagesRequest:
    """Raises DialectError that names the field. `counts`: the prompt is to be counted, not answered."""
    try:
        return _read(Fields.of(read_json(raw) if memory is None else memory.read(raw), ""), counts=counts)
    except RecursionError:
        raise DialectError("the body is nested too deeply; send a flatter JSON object") from None


def _read(body: Fields, *, counts: bool) -> MessagesRequest:
    for name, why in _REFUSED.items():
        if body.get(name):
            raise DialectError(f"{name} is refused: {why}", field=name, code="unsupported_parameter")
    blocks = Blocks({}, {key for key in body.values.keys() - _READ - _REFUSED.keys() if body.get(key) is not None})
    offered = read_tools(body, blocks.ignored)
    request = ModelRequest(
        messages=(*read_system(body), *read_messages(body, blocks, offered.deferred, prefill=counts)),
        images=blocks.images,
        output_schema=_output_schema(body, blocks.ignored),
        tools=offered.tools,
        tool_choice=read_choice(body, offered, blocks.ignored),
        sampling=_sampling(body, counts=counts),
        model=body.text("model") or "",
        ignored=tuple(sorted(blocks.ignored)),
    )
    thinking = Fields.of(body.get("thinking") or {}, "thinking").text("type")
    return MessagesRequest(request=request, stream=body.flag("stream"), shows_thinking=thinking != "disabled")


def _output_schema(body: Fields, ignored: set[str]) -> str:
    """JSON text; "" where any text will do."""
    config = Fields.of(body.get("output_config") or {}, "output_config")
    ignored.update(f"output_config.{key}" for key in config.values.keys() - {"format"} if config.get(key) is not None)
    for place, name in ((config, "format"), (body, "output_format")):
        if place.get(name) is not None:
            return _schema(Fields.of(place.get(name), place.at(name)))
    return ""


def _schema(wish: Fields) -> str:
    if wish.text("type") != "json_schema":
        raise wrong(wish.at("type"), '"json_schema"', wish.get("type"))
    return write_json(Fields.of(wish.get("schema"), wish.at("schema")).values)


def _sampling(body: Fields, *, counts: bool) -> Sampling:
    max_tokens = body.integer("max_tokens", 1)
    if max_tokens is None and not counts:
        raise wrong("max_tokens", "an integer of at least 1", None)
    return Sampling(
        temperature=body.number("temperature", 0),
        top_p=body.number("top_p", 0, 1),
        top_k=body.integer("top_k", -1),
        max_tokens=max_tokens,
        stop=_stop(body),
    )


def _stop(body: Fields) -> tuple[str, ...]:
    found = []
    for path, item in body.items("stop_sequences"):
        if not isinstance(item, str) or not item:
            raise wrong(path, "a string that is not empty", item)
        found.append(item)
    return tuple(found)
