"""The conversations over which a chat template is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openforgerl.records import ImageRef, Message, Role, ToolCall, ToolSpec

ARGUMENTS = '{"command":  "ls -la", "limit": 1}'
"""Spaced as no printer would, so that a template that prints it as it is shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    case: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    may_be_refused: bool = False
    """A template that raises an error for it is taken all the same: so will a request of that kind be refused."""


TOOLS = (
    ToolSpec(
        name="bash",
        definition='{"name": "bash", "description": "Run <a> command.", "parameters": {"type": "object", '
        '"required": ["command"], "properties": {"command": {"type": "string"}, "limit": {"type": "number"}}}}',
    ),
    ToolSpec(name="read", definition='{"name": "read", "description": "Liest é.", "parameters": {"type": "object"}}'),
)
SYSTEM = Message(role=Role.SYSTEM, text="You work in a shell.")
DEVELOPER = Message(role=Role.DEVELOPER, text="Answer in one line.")
USER = Message(role=Role.USER, text="List the files.")
AGAIN = Message(role=Role.USER, text="And now?")
ANSWER = Message(role=Role.ASSISTANT, text="There are two.")


def calling(*names: str, text: str = "", reasoning: str = "") -> Message:
    """An assistant turn with one call of each name."""
    calls = [ToolCall(id=f"call{place}", name=name, arguments=ARGUMENTS) for place, name in enumerate(names)]
    return Message(role=Role.ASSISTANT, text=text, tool_calls=tuple(calls), reasoning=reasoning)


def result(place: int, text: str) -> Message:
    """The result of the call at this place of the turn before."""
    return Message(role=Role.TOOL, text=text, tool_call_id=f"call{place}")


def thinking(text: str) -> Message:
    return Message(role=Role.ASSISTANT, text=text, reasoning="First the list,\n\nthen the count.")


PROBES: Sequence[Probe] = (
    Probe(case="a plain conversation", messages=(USER, ANSWER, AGAIN, ANSWER)),
    Probe(case="a system message", messages=(SYSTEM, USER, ANSWER, AGAIN)),
    Probe(case="a developer message", messages=(DEVELOPER, USER, ANSWER, AGAIN)),
    Probe(
        case="a developer message in mid-conversation",
        messages=(SYSTEM, USER, ANSWER, DEVELOPER, AGAIN),
        may_be_refused=True,
    ),
    Probe(
        case="tools and a system message",
        messages=(SYSTEM, USER, calling("bash"), result(0, "a.txt\nb.txt\n"), ANSWER, AGAIN),
        tools=TOOLS,
    ),
    Probe(
        case="tools and no system message",
        messages=(USER, calling("bash", text="I look."), result(0, "a.txt"), ANSWER, AGAIN),
        tools=TOOLS,
    ),
    Probe(
        case="parallel calls and several tool results",
        messages=(
            USER,
            calling("bash", "read", "bash", text="All."),
            *(result(place, "ok") for place in range(3)),
            ANSWER,
        ),
        tools=TOOLS,
        may_be_refused=True,
    ),
    Probe(
        case="reasoning",
        messages=(
            USER,
            thinking("Two."),
            AGAIN,
            calling("bash", reasoning="Look."),
            result(0, "a"),
            thinking("One."),
            USER,
        ),
        tools=TOOLS,
    ),
    Probe(
        case="empty texts",
        messages=(
            SYSTEM,
            Message(role=Role.USER),
            Message(role=Role.ASSISTANT),
            USER,
            calling("bash"),
            result(0, ""),
            AGAIN,
        ),
        tools=TOOLS,
    ),
    Probe(
        case="texts beyond ASCII",
        messages=(
            Message(role=Role.USER, text="Zähle 数 🦜e\u0301"),
            Message(role=Role.ASSISTANT, text="Größe: 数"),
            AGAIN,
        ),
    ),
    Probe(
        case="consecutive assistant and user messages",
        messages=(USER, AGAIN, ANSWER, thinking("Two."), USER),
        may_be_refused=True,
    ),
)


def _picture(at: int) -> ImageRef:
    return ImageRef(sha256="0" * 64, media_type="image/png", at=at)


IMAGE_PROBES: Sequence[Probe] = (
    Probe(
        case="images",
        messages=(
            Message(role=Role.USER, text="Look.And here?", images=(_picture(0), _picture(5), _picture(5))),
            ANSWER,
            Message(role=Role.USER, images=(_picture(0),)),
        ),
    ),
)


def control_probe(control: str) -> Probe:
    """Control-token text wherever a message or a tool can hold it."""
    mark = f"x{control}y"
    spec = ToolSpec(
        name="bash", definition=f'{{"name": "bash", "description": "{mark}", "parameters": {{"type": "object"}}}}'
    )
    call = ToolCall(id="call0", name="bash", arguments=f'{{"command": "{mark}"}}')
    turn = Message(role=Role.ASSISTANT, text=mark, tool_calls=(call,), reasoning=mark)
    messages = (Message(role=Role.SYSTEM, text=mark), Message(role=Role.USER, text=mark), turn, result(0, mark))
    return Probe(case=f"the text {control!r} in messages", messages=messages, tools=(spec,))
