"""A conversation in pieces: what one message adds to the text, whatever stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from openforgerl.records import Message, Role, ToolCall, ToolSpec
from openforgerl.tokens.rendering import ChatRenderer, Marked

BODY = "\U00100001\U00100002\U00100001"
"""Stands for the body of an assistant turn; occurs in no text that we render with it."""

_USER = Message(role=Role.USER, text="Hello")
_ASSISTANT = Message(role=Role.ASSISTANT, text="Hello")
_CALLING = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(id="call0", name="f", arguments="{}"),))
_BEFORE = {
    Role.SYSTEM: (_USER, _ASSISTANT),
    Role.DEVELOPER: (_USER, _ASSISTANT),
    Role.USER: (_USER, _ASSISTANT),
    Role.ASSISTANT: (_USER,),
    Role.TOOL: (_USER, _CALLING),
}
"""A conversation after which a message of this role is in order."""


def units(messages: Sequence[Message], *, merge_tool_results: bool) -> list[tuple[Message, ...]]:
    """The messages that a template renders apart from each other: one each, or a run of tool results together."""
    found: list[tuple[Message, ...]] = []
    for message in messages:
        if merge_tool_results and message.role is Role.TOOL and found and found[-1][0].role is Role.TOOL:
            found[-1] = (*found[-1], message)
        else:
            found.append((message,))
    return found


def piece(renderer: ChatRenderer, unit: Sequence[Message], *, first: bool, tools: Sequence[ToolSpec] = ()) -> Marked:
    """The text of one unit; the first one brings what the template prints before any message.

    Raises AssemblyError where the template refuses it, ValueError where its text depends on what is before it.
    """
    if first:
        return renderer.render(unit, tools)
    return renderer.render((*_BEFORE[unit[0].role], *unit)).behind(_before(renderer, unit[0].role))


@lru_cache(maxsize=64)
def _before(renderer: ChatRenderer, role: Role) -> Marked:
    return renderer.render(_BEFORE[role])


def frame(renderer: ChatRenderer, *, first: bool, tools: Sequence[ToolSpec] = ()) -> tuple[str, str]:
    """What stands before and behind the body of an assistant turn. Raises ValueError, AssemblyError as `piece`."""
    turn = Message(role=Role.ASSISTANT, text=BODY)
    opening, found, closing = piece(renderer, (turn,), first=first, tools=tools).plain().partition(BODY)
    if not found or BODY in closing:
        raise ValueError("the text of an assistant message is not printed once, as it is")
    return opening, closing


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """An assistant turn in the text of a conversation."""

    start: int
    body: int
    """Behind its header."""
    stop: int
    end: int
    """Behind its end-of-turn token."""


def regions(whole: Marked, header: str, end: str, count: int) -> tuple[Region, ...]:
    """The turns between the headers and the ends of turns in a prompt. Raises ValueError where they are not `count`.

    Both begin with a control token, and none of those is left unbroken in what comes from a message.
    """
    found: list[Region] = []
    place = 0
    for _ in range(count):
        start = whole.text.find(header, place)
        body = start + len(header)
        stop = whole.text.find(end, body)
        if start < 0 or stop < 0:
            break
        place = stop + len(end)
        found.append(Region(start=start, body=body, stop=stop, end=place))
    if len(found) != count or whole.text.find(header, place) != len(whole.text) - len(header):
        raise ValueError(f"of {count} assistant turns it prints another number, or the prompt opens none at its end")
    return tuple(found)
