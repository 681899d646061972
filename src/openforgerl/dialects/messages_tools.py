"""The tools of a Messages request: which are offered at the head of the prompt, and which only where they are told.

A deferred tool is no part of the head: it is told where a result of a tool search refers to it. So the head stays as it
was while a harness loads tools, and the harness's own words hold, that a tool cannot be called before it is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import write_json
from openforgerl.records import ToolSpec

_READ = {"type", "name", "description", "input_schema", "defer_loading"}
_SERVER_SEARCH = "tool_search_tool_"


@dataclass(frozen=True, slots=True)
class Offered:
    tools: tuple[ToolSpec, ...]
    deferred: Mapping[str, str]
    """Definitions by name."""

    @property
    def names(self) -> Set[str]:
        return {tool.name for tool in self.tools} | self.deferred.keys()


@dataclass(frozen=True, slots=True)
class Tool:
    """One entry of `tools`."""

    spec: ToolSpec | None
    """None for one that has no schema: it runs on a server, or its type says all about it."""
    kind: str = "custom"
    deferred: bool = False
    ignored: Set[str] = field(default_factory=frozenset)


def read_tools(body: Fields, ignored: set[str]) -> Offered:
    """Tools with a schema, in order; others are left out, noted by their type.

    Where the server was to search the deferred ones, or where nothing else is offered, all are offered at once.
    """
    tools = body.each("tools", read_tool)
    ignored.update(name for tool in tools for name in tool.ignored)
    searched_here = any(tool.kind.startswith(_SERVER_SEARCH) for tool in tools)
    head = tuple(tool.spec for tool in tools if tool.spec is not None and not tool.deferred)
    if searched_here or not head:
        return Offered(tuple(tool.spec for tool in tools if tool.spec is not None), {})
    return Offered(head, {tool.spec.name: tool.spec.definition for tool in tools if tool.spec and tool.deferred})


def read_tool(tool: Fields) -> Tool:
    kind, name, description = tool.text("type") or "custom", tool.text("name"), tool.text("description")
    if kind != "custom" and tool.get("input_schema") is None:
        return Tool(None, kind, ignored={f"tools.{kind}"})
    if not name:
        raise wrong(tool.at("name"), "the name of the tool", tool.get("name"))
    schema = Fields.of(tool.get("input_schema"), tool.at("input_schema")).values
    described = {} if description is None else {"description": description}
    spec = ToolSpec(definition=write_json({"name": name, **described, "parameters": schema}), name=name)
    rest = {f"tools.{key}" for key in tool.values.keys() - _READ if tool.get(key) not in (None, False)}
    return Tool(spec, kind, tool.flag("defer_loading"), rest)


def told(definitions: Iterable[str]) -> str:
    """Tools as the result of a search tells them to the model."""
    lines = [f"<function>{definition}</function>" for definition in definitions]
    return "\n".join(["<functions>", *lines, "</functions>"])


def read_choice(body: Fields, offered: Offered, ignored: set[str]) -> str:
    choice = Fields.of(body.get("tool_choice") or {}, "tool_choice")
    kind, name = choice.text("type") or "auto", choice.text("name")
    if choice.flag("disable_parallel_tool_use"):
        ignored.add("tool_choice.disable_parallel_tool_use")
    if kind in ("auto", "none"):
        return kind
    if kind == "any" and offered.tools:
        return "required"
    if kind == "tool" and name and name in offered.names:
        return name
    if kind == "tool":
        raise wrong("tool_choice.name", "the name of a tool that was sent with an input_schema", name)
    raise wrong("tool_choice.type", '"auto", "none", "tool", or "any" beside a tool with an input_schema', kind)
