"""A conversation in pieces: what one message adds to the text, whatever stands before it."""

from __future__ import annotations

from collections.abc import Sequence
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
