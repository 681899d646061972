"""The tools of a Gemini request: function declarations, their schemas, and how their use may be forced."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.gemini_parts import Notes, camel, camel_name, child, listed
from openforgerl.dialects.jsontext import Json, write_json
from openforgerl.errors import DialectError
from openforgerl.records import ToolSpec

_DECLARED = {"name", "description", "parameters", "parametersJsonSchema"}
_SCHEMAS = ("items", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_BY_NAME = ("properties", "$defs", "defs")


@dataclass(frozen=True, slots=True)
class Tool:
    """One entry of `tools`: it may declare several functions."""

    specs: Sequence[ToolSpec]
    ignored: Set[str]


def read_tools(body: Fields, ignored: set[str]) -> tuple[ToolSpec, ...]:
    """Functions in order; tools that run on a server are left out, noted by name."""
    tools = listed(body, "tools").each("tools", read_tool)
    ignored.update(name for tool in tools for name in tool.ignored)
    return tuple(spec for tool in tools for spec in tool.specs)


def read_tool(fields: Fields) -> Tool:
    tool = listed(camel(fields), "functionDeclarations")
    ignored = {f"tools.{key}" for key in tool.values.keys() - {"functionDeclarations"} if tool.get(key) is not None}
    specs = []
    for declared in map(camel, tool.objects("functionDeclarations")):
        ignored |= {f"tools.{key}" for key in declared.values.keys() - _DECLARED if declared.get(key) is not None}
        specs.append(_spec(declared))
    return Tool(specs, ignored)


def _spec(declared: Fields) -> ToolSpec:
    name, description = declared.text("name"), declared.text("description")
    if not name:
        raise wrong(declared.at("name"), "the name of the function", name)
    definition: dict[str, Json] = {"name": name}
    if description is not None:
        definition["description"] = description
    definition["parameters"] = _parameters(declared)
    return ToolSpec(definition=write_json(definition), name=name)


def _parameters(declared: Fields) -> dict[str, Json]:
    for key in ("parametersJsonSchema", "parameters"):
        if declared.get(key) is not None:
            given = Fields.of(declared.get(key), declared.at(key)).values
            return given if key == "parametersJsonSchema" else json_schema(given)
    return {"type": "object", "properties": {}}


def json_schema(schema: dict[str, Json]) -> dict[str, Json]:
    """A Schema of this API as JSON Schema: types in lower case, keywords in camelCase; all else is kept as sent."""
    return {key: _converted(key, value) for key, value in ((camel_name(key), value) for key, value in schema.items())}


def _converted(key: str, value: Json) -> Json:
    if key == "type" and isinstance(value, str):
        return value.lower()
    if key in _BY_NAME and isinstance(value, dict):
        return {name: json_schema(each) if isinstance(each, dict) else each for name, each in value.items()}
    if key in _SCHEMAS and isinstance(value, dict):
        return json_schema(value)
    if key in _LISTS and isinstance(value, list):
        return [json_schema(each) if isinstance(each, dict) else each for each in value]
    return value


def read_choice(body: Fields, tools: Sequence[ToolSpec], ignored: set[str]) -> str:
    wish = child(child(body, "toolConfig"), "functionCallingConfig")
    Notes({}, ignored).pass_over(child(body, "toolConfig"), {"functionCallingConfig"}, "toolConfig")
    mode = (wish.text("mode") or "AUTO").upper()
    names = [tool.name for tool in tools]
    allowed = _allowed(wish, names)
    if mode in ("AUTO", "MODE_UNSPECIFIED"):
        return "auto"
    if mode == "VALIDATED":
        ignored.add("toolConfig.functionCallingConfig.mode")
        return "auto"
    if mode == "NONE":
        return "none"
    if mode != "ANY" or not names:
        raise wrong(wish.at("mode"), '"AUTO", "NONE", "VALIDATED", or "ANY" beside a function', wish.get("mode"))
    if not allowed or set(allowed) == set(names):
        return "required"
    if len(allowed) > 1:
        path = wish.at("allowedFunctionNames")
        why = f"one function or all can be forced, not {len(allowed)} of {len(names)}; offer only those"
        raise DialectError(f"{path}: {why}", field=path, code="unsupported_value")
    return allowed[0]


def _allowed(wish: Fields, names: Sequence[str]) -> list[str]:
    found = []
    for path, item in wish.items("allowedFunctionNames"):
        if not isinstance(item, str) or item not in names:
            raise wrong(path, "the name of a function that was declared", item)
        found.append(item)
    return found
