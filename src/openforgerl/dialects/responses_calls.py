"""The kinds of tool calls on the Responses wire, each as a call of a function, and back.

The law: arguments that went out come back as the same JSON value. What a kind cannot carry that way goes out as a plain
function_call, which carries any text; a freeform call carries its input as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from openforgerl.dialects.jsontext import Json, Number, read_json, write_json
from openforgerl.errors import DialectError

FUNCTION, CUSTOM = "function", "custom"
_NO_INPUT = 'no "input" in '
Object = dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a call of a function goes on the wire."""

    kind: str = FUNCTION
    """The type of the tool that was offered."""
    name: str
    namespace: str = ""


def flat_name(namespace: str, name: str) -> str:
    """How the model calls a tool of a namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A client-side tool that has an item of its own on the wire."""

    item: str
    """The type of its calls."""
    name: str
    description: str
    parameters: str
    """JSON text of the schema that the model sees."""
    carries: Callable[[Object], bool]
    """Whether arguments have what the item must have."""
    written: Callable[[Object], Object]
    """Arguments to members of the item."""
    read: Callable[[Object], Object]
    """Members of the item to arguments."""

    def members(self, arguments: str) -> Object | None:
        """None where the item cannot carry the arguments."""
        value = json_of(arguments)
        if not isinstance(value, dict) or not self.carries(value):
            return None
        members = self.written(value)
        return members if self.read(members) == value else None


def item_of(route: Route, call_id: str, arguments: str) -> dict[str, object]:
    """A whole call as it stands on the wire, without id and status."""
    form = FORMS.get(route.kind)
    members = form.members(arguments) if form else None
    if form and members is not None:
        shown = {name: orjson.Fragment(write_json(value)) for name, value in members.items()}
        return {"type": form.item, "call_id": call_id, **shown}
    named = {"call_id": call_id, "name": route.name, **({"namespace": route.namespace} if route.namespace else {})}
    if route.kind == CUSTOM:
        return {"type": "custom_tool_call", **named, "input": input_of(arguments)}
    return {"type": "function_call", **named, "arguments": arguments if arguments.strip() else arguments + "{}"}


def input_of(arguments: str) -> str:
    """The input of a freeform call. Arguments of another form are told instead: the tool then says what is wrong."""
    value = json_of(arguments)
    if isinstance(value, dict) and value.keys() == {"input"} and isinstance(found := value["input"], str):
        return found
    return _NO_INPUT + (arguments.encode(errors="replace").decode() if arguments.strip() else "{}")


def arguments_of(given: str) -> str:
    """The arguments of a freeform call whose input came back."""
    told = given.removeprefix(_NO_INPUT)
    return told if input_of(told) == given else write_json({"input": given})


def json_of(text: str) -> Json:
    """None where it is no JSON."""
    try:
        return read_json(text.encode())
    except (DialectError, RecursionError, UnicodeEncodeError):
        return None


def _said(values: Mapping[str, Json], *names: str) -> Object:
    """Without members that say nothing; `names` say nothing where they are empty."""
    return {name: value for name, value in values.items() if value is not None and (value or name not in names)}


def _inner(members: Object, name: str) -> Object:
    value = members.get(name)
    return value if isinstance(value, dict) else {}


def _exec(members: Object) -> Object:
    return {name: value for name, value in _said(_inner(members, "action"), "env").items() if name != "type"}


def _texts(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _integers(arguments: Object, *names: str) -> bool:
    """Whether those that are there are integers: a strict client reads no 1.0 as one."""
    given = [arguments[name] for name in names if name in arguments]
    return all(isinstance(value, Number) and value.literal.lstrip("-").isdecimal() for value in given)


def _operation(arguments: Object) -> bool:
    """A file and what to do with it, as the vendor's SDK wants it."""
    kind, texts = arguments.get("type"), [arguments.get("path"), arguments.get("diff", "")]
    known = kind == "delete_file" or (kind in ("create_file", "update_file") and "diff" in arguments)
    return known and all(isinstance(text, str) for text in texts)


def _action(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _schema(properties: str, *required: str) -> str:
    return f'{{"type": "object", "properties": {{{properties}}}, "required": {write_json(list(required))}}}'


_TEXT, _INTEGER, _TEXTS = '{"type": "string"}', '{"type": "integer"}', '{"type": "array", "items": {"type": "string"}}'
_ACTION = (
    '{"type": "object", "properties": {"type": {"type": "string", "enum": ["click", "double_click", "drag", '
    '"keypress", "move", "screenshot", "scroll", "type", "wait"]}, "x": {"type": "integer"}, "y": {"type": "integer"}, '
    '"button": {"type": "string"}, "scroll_x": {"type": "integer"}, "scroll_y": {"type": "integer"}, '
    '"text": {"type": "string"}, "keys": {"type": "array", "items": {"type": "string"}}, '
    '"path": {"type": "array", "items": {"type": "object"}}}, "required": ["type"]}'
)
_SCREEN = "Control the computer's mouse and keyboard and look at its screen."

FORMS: Mapping[str, Form] = {
    "local_shell": Form(
        item="local_shell_call",
        name="local_shell",
        description="Run a command on the local machine.",
        parameters=_schema(
            f'"command": {_TEXTS}, "timeout_ms": {_INTEGER}, "working_directory": {_TEXT}, "user": {_TEXT}', "command"
        ),
        carries=lambda given: _texts(given.get("command")) and _integers(given, "timeout_ms"),
        written=lambda given: {"action": {"type": "exec", "env": {}, **given}},
        read=_exec,
    ),
    "shell": Form(
        item="shell_call",
        name="shell",
        description="Run commands in a shell on the local machine, in their order.",
        parameters=_schema(
            f'"commands": {_TEXTS}, "timeout_ms": {_INTEGER}, "max_output_length": {_INTEGER}', "commands"
        ),
        carries=lambda given: _texts(given.get("commands")) and _integers(given, "timeout_ms", "max_output_length"),
        written=lambda given: {"action": given},
        read=lambda members: _said(_inner(members, "action")),
    ),
    "apply_patch": Form(
        item="apply_patch_call",
        name="apply_patch",
        description="Create, change or delete one file; a change is a unified diff without file headers.",
        parameters=_schema(
            '"type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]}, '
            f'"path": {_TEXT}, "diff": {_TEXT}',
            "type",
            "path",
        ),
        carries=_operation,
        written=lambda given: {"operation": given},
        read=lambda members: _said(_inner(members, "operation")),
    ),
    "computer": Form(
        item="computer_call",
        name="computer",
        description=_SCREEN,
        parameters=_schema(f'"actions": {{"type": "array", "items": {_ACTION}}}', "actions"),
        carries=lambda given: isinstance(found := given.get("actions"), list) and all(map(_action, found)),
        written=lambda given: {**given, "pending_safety_checks": []},
        read=lambda members: {name: members[name] for name in ("actions", "action") if members.get(name) is not None},
    ),
    "computer_use_preview": Form(
        item="computer_call",
        name="computer",
        description=_SCREEN,
        parameters=_schema(f'"action": {_ACTION}', "action"),
        carries=lambda given: _action(given.get("action")),
        written=lambda given: {**given, "pending_safety_checks": []},
        read=lambda members: {name: members[name] for name in ("actions", "action") if members.get(name) is not None},
    ),
    "tool_search": Form(
        item="tool_search_call",
        name="tool_search",
        description="Search for further tools.",
        parameters=_schema(f'"query": {_TEXT}', "query"),
        carries=lambda given: True,
        written=lambda given: {"execution": "client", "arguments": given},
        read=lambda members: _inner(members, "arguments"),
    ),
}
"""By the type of the tool."""

READ_BACK: Mapping[str, Form] = {form.item: form for form in FORMS.values()}
"""By the type of the call."""
