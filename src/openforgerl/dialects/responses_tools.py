"""The tools of a Responses request: what the model is offered, and where its calls go on the wire.

A tool that a client-side search finds is told where it was found, so that the head of the prompt stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import write_json
from openforgerl.dialects.responses_calls import CUSTOM, FORMS, FUNCTION, Route, flat_name
from openforgerl.errors import DialectError
from openforgerl.records import ToolSpec

_READ = {"type", "name", "description", "parameters", "format", "defer_loading"}
_INPUT = "The text that the tool is given, as it is: no JSON, no quotes around it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One function, with its place on the wire."""

    spec: ToolSpec
    route: Route
    deferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One element of `tools`; without functions where it runs on a server."""

    kind: str
    written: str
    """JSON text, as it was sent."""
    tools: tuple[Tool, ...] = ()
    ignored: Set[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    entries: Sequence[Entry]
    tools: tuple[Tool, ...]
    """At the head of the prompt."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools)


def read_tools(body: Fields, ignored: set[str]) -> Offered:
    entries = body.each("tools", read_entry)
    for entry in entries:
        ignored.update(entry.ignored)
    found_later = any(entry.kind == "tool_search" and entry.tools for entry in entries)
    tools = tuple(tool for entry in entries for tool in entry.tools if not (found_later and tool.deferred))
    return Offered(entries=entries, tools=tools)


def routes_of(tools: Iterable[Tool]) -> Mapping[str, Route]:
    """By the name that the model says. Raises DialectError where two tools would have one."""
    found: dict[str, Route] = {}
    for tool in tools:
        name = tool.spec.name
        if found.setdefault(name, tool.route) != tool.route:
            why = f"two tools would be called {name!r}, for namespace and name are joined; rename one of them"
            raise DialectError(f"tools: {why}", field="tools")
    return found


def told(tools: Sequence[Tool]) -> str:
    """Tools as the model reads of them in the course of a conversation."""
    lines = [f"<function>{tool.spec.definition}</function>" for tool in tools]
    return "\n".join(["<functions>", *lines, "</functions>"])


def read_entry(fields: Fields) -> Entry:
    kind, written = fields.text("type") or FUNCTION, write_json(fields.values)
    if kind == "namespace":
        return _namespace(fields, written)
    if kind in (FUNCTION, CUSTOM):
        return Entry(kind=kind, written=written, tools=(_tool(fields),), ignored=_passed_over(fields))
    if kind in FORMS and not _runs_on_a_server(fields, kind):
        return Entry(kind=kind, written=written, tools=(_built_in(fields, kind),))
    return Entry(kind=kind, written=written, ignored={f"tools.{kind}"})


def _namespace(fields: Fields, written: str) -> Entry:
    """Its own description is not told: each of its tools has one."""
    name = _name(fields)
    tools: list[Tool] = []
    ignored = {"tools.namespace.description"} if fields.get("description") else set[str]()
    for inner in fields.objects("tools"):
        kind = inner.text("type") or FUNCTION
        if kind in (FUNCTION, CUSTOM):
            tools.append(_tool(inner, namespace=name))
            ignored |= _passed_over(inner)
        else:
            ignored.add(f"tools.{kind}")
    return Entry(kind="namespace", written=written, tools=tuple(tools), ignored=ignored)


def _tool(fields: Fields, namespace: str = "") -> Tool:
    kind, name, description = fields.text("type") or FUNCTION, _name(fields), fields.text("description") or ""
    shown = flat_name(namespace, name)
    definition = _freeform(fields, shown, description) if kind == CUSTOM else _function(fields, shown, description)
    return Tool(
        spec=ToolSpec(definition=definition, name=shown),
        route=Route(kind=kind, name=name, namespace=namespace),
        deferred=fields.flag("defer_loading"),
    )


def _function(fields: Fields, name: str, description: str) -> str:
    described = {"description": description} if description else {}
    given = fields.get("parameters")
    parameters = {} if given is None else {"parameters": Fields.of(given, fields.at("parameters")).values}
    return write_json({"name": name, **described, **parameters})


def _freeform(fields: Fields, name: str, description: str) -> str:
    """A freeform tool takes one text; its grammar is told, and not enforced."""
    form = Fields.of(fields.get("format") or {}, fields.at("format"))
    grammar = form.text("definition") or ""
    if grammar:
        description = f"{description}\n\nThe input follows this {form.text('syntax') or 'lark'} grammar:\n{grammar}"
    described = {"description": description.strip()} if description.strip() else {}
    text = {"type": "string", "description": _INPUT}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    return write_json({"name": name, **described, "parameters": parameters})  # type: ignore[dict-item]


def _built_in(fields: Fields, kind: str) -> Tool:
    """A client-side tool whose type says all about it; a search may bring its own words, a screen its size."""
    form = FORMS[kind]
    description = fields.text("description") or form.description
    width, height = (fields.integer(name, 1) for name in ("display_width", "display_height"))
    if width and height:
        description += f" It is {width} x {height} pixels."
    given = fields.get("parameters")
    parameters = form.parameters if given is None else write_json(Fields.of(given, fields.at("parameters")).values)
    head = write_json({"name": form.name, "description": description}).removesuffix("}")
    definition = f'{head}, "parameters": {parameters}}}'
    return Tool(spec=ToolSpec(definition=definition, name=form.name), route=Route(kind=kind, name=form.name))


def _runs_on_a_server(fields: Fields, kind: str) -> bool:
    if kind == "tool_search":
        return fields.text("execution") != "client"
    if kind != "shell":
        return False
    environment = Fields.of(fields.get("environment") or {}, fields.at("environment"))
    return environment.text("type") not in (None, "local")


def _name(fields: Fields) -> str:
    name = fields.text("name")
    if not name:
        raise wrong(fields.at("name"), "the name of the tool", fields.get("name"))
    return name


def _passed_over(fields: Fields) -> set[str]:
    """`strict` and `format`: no grammar is sampled under."""
    found = {f"tools.{key}" for key in fields.values.keys() - _READ if fields.get(key) not in (None, False)}
    return found | ({"tools.format"} if fields.get("format") is not None else set())
