"""The assistant's turns of a history, put together from the pieces that a wire format has of them.

One answer has reasoning, then text, then calls: a new turn begins where the order goes back, or where another answer's
mark stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from openforgerl.records import Message, Role, ToolCall


class Stage(IntEnum):
    REASONING = 0
    TEXT = 1
    CALLS = 2


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an assistant's turn."""

    stage: Stage
    text: str = ""
    call: ToolCall | None = None
    mark: str = ""
    """The id of the call whose reasoning stands before it, or is it."""


@dataclass(slots=True)
class _Turn:
    stage: Stage = Stage.REASONING
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    mark: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def takes(self, piece: Piece) -> bool:
        return piece.stage >= self.stage and (not piece.mark or self.mark in ("", piece.mark))

    def add(self, piece: Piece) -> None:
        self.stage, self.mark = piece.stage, self.mark or piece.mark
        if piece.call is not None:
            self.calls.append(piece.call)
        elif piece.text:
            (self.texts if piece.stage is Stage.TEXT else self.reasoning).append(piece.text)

    def message(self, between: str) -> Message:
        return Message(
            role=Role.ASSISTANT,
            text=between.join(self.texts),
            reasoning="".join(self.reasoning),
            reasoning_mark=self.mark,
            tool_calls=tuple(self.calls),
        )


def turns_of(pieces: Iterable[Piece], between: str) -> list[Message]:
    """At least one message. `between`: what joins two texts of one turn."""
    turns = [_Turn()]
    for piece in pieces:
        if not turns[-1].takes(piece):
            turns.append(_Turn())
        turns[-1].add(piece)
    return [turn.message(between) for turn in turns]
