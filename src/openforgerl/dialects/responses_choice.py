"""`tool_choice` of a Responses request, in all its forms."""

from __future__ import annotations

from openforgerl.dialects.fields import Fields, wrong
from openforgerl.dialects.jsontext import Json
from openforgerl.dialects.responses_calls import CUSTOM, FUNCTION, flat_name
from openforgerl.dialects.responses_tools import Offered, Tool

_FORMS = (
    '"auto", "none", "required" beside a tool that can be called here, or an object that names such a tool: '
    '{"type": "function", "name": ...}'
)


def read_choice(body: Fields, offered: Offered) -> tuple[str, Offered]:
    """As the records say it, and what is offered then: a set of allowed tools leaves out the others."""
    value = body.get("tool_choice")
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _allowed(Fields.of(value, "tool_choice"), offered)
    if value is None or value in ("auto", "none"):
        return str(value or "auto"), offered
    if value == "required" and offered.tools:
        return "required", offered
    if isinstance(value, dict) and (tool := _named(value, offered)):
        return tool.spec.name, offered
    raise wrong("tool_choice", _FORMS, value)


def _allowed(choice: Fields, offered: Offered) -> tuple[str, Offered]:
    mode = choice.text("mode") or "auto"
    found = [_named(item.values, offered) for item in choice.objects("tools")]
    tools = tuple(tool for tool in offered.tools if tool in found)
    left = Offered(entries=offered.entries, tools=tools)
    if mode == "auto":
        return "auto", left
    if mode == "required" and tools:
        return tools[0].spec.name if len(tools) == 1 else "required", left
    raise wrong("tool_choice.mode", '"auto", or "required" beside a tool that can be called here', mode)


def _named(choice: dict[str, Json], offered: Offered) -> Tool | None:
    """The tool that an object names."""
    fields = Fields(choice, "tool_choice")
    kind = fields.text("type") or FUNCTION
    name = flat_name(fields.text("namespace") or "", fields.text("name") or "")
    for tool in offered.tools:
        same_kind = tool.route.kind == kind or (kind == "computer_use" and tool.route.kind.startswith("computer"))
        if same_kind and (kind not in (FUNCTION, CUSTOM) or tool.spec.name == name or tool.route.name == name):
            return tool
    return None
