"""An answer of an engine that gives no ids: its message, from the events that were passed on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from openforgerl.records import (
    CallEvent,
    EngineFinish,
    Finish,
    Message,
    ReasoningDelta,
    Role,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStarted,
)
from openforgerl.tokens.parsing import ParsedAnswer

COUNTER = "calls_without_ids"
"""Calls whose answer is text only: they are in no row."""


def answer_said(said: Sequence[CallEvent], finish: EngineFinish | None) -> ParsedAnswer:
    """`finish` None: it was given up."""
    calls = _calls(said)
    answer = Message(
        role=Role.ASSISTANT,
        text="".join(event.text for event in said if isinstance(event, TextDelta)),
        reasoning="".join(event.text for event in said if isinstance(event, ReasoningDelta)),
        tool_calls=calls,
    )
    stopped = Finish.TOOL_CALLS if calls else Finish.STOP
    ended = {EngineFinish.STOP: stopped, EngineFinish.LENGTH: Finish.LENGTH}
    return ParsedAnswer(
        events=[],
        answer=answer,
        spans=(),
        finish=ended.get(finish) if finish else None,
        ends_turn=False,
        counters={COUNTER: 1},
    )


def _calls(said: Sequence[CallEvent]) -> tuple[ToolCall, ...]:
    arguments: dict[int, str] = {}
    for event in said:
        if isinstance(event, ToolArgumentsDelta):
            arguments[event.index] = arguments.get(event.index, "") + event.text
    started = [event for event in said if isinstance(event, ToolCallStarted)]
    return tuple(ToolCall(id=each.id, name=each.name, arguments=arguments.get(each.index) or "{}") for each in started)
