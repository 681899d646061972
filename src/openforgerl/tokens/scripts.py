"""The text of a prompt, given out part by part as its messages are put together.

In pieces where a template renders each message apart from the others; else cut from the whole conversation, rendered
as a stock server renders it, so that what depends on later messages is as they make it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from openforgerl.records import Message, Role, SpanKind, ToolSpec
from openforgerl.tokens.ids import Ids
from openforgerl.tokens.markup import scan
from openforgerl.tokens.recognition import ITEMS_MOST, Recognition, Sent
from openforgerl.tokens.rendering import Marked
from openforgerl.tokens.template import Template
from openforgerl.tokens.turns import Turn

Piece = Callable[[tuple[Message, ...], bool, tuple[ToolSpec, ...]], Ids]
Encode = Callable[[str, str], Ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the recorded ids of a turn."""

    opening: Ids
    reasoning: bool | None = None
    """Whether the reasoning is there; None: as the message shows it."""


class Script(Protocol):
    """Of one prompt. `place`: how many messages are in already."""

    def begins(self, text: str) -> bool:
        """Whether an earlier prompt's beginning stands unchanged; it is then passed."""

    def passed(self) -> str:
        """The text so far, for `begins`; "" where no text depends on later messages."""

    def counts(self, run: Sequence[Message], place: int) -> Sequence[int]:
        """How many of these assistant messages may be one answer, the preferred number first."""

    def units(self, run: tuple[Message, ...], place: int) -> list[tuple[Message, ...]]:
        """Messages of another role, as they are added."""

    def piece(self, unit: tuple[Message, ...], place: int) -> Ids:
        """Messages that are encoded anew; they are passed."""

    def opening(self, place: int) -> Ids:
        """What stands before the body of the next assistant turn."""

    def frame(self, turn: Turn, sent: Sent, place: int) -> Frame | None:
        """Around a recorded turn, which is passed; None where the template prints something else in its place."""

    def ending(self) -> Ids:
        """What stands behind the last message: it opens the answer."""


class Pieces:
    """Of a template that renders each message apart."""

    def __init__(self, template: Template, piece: Piece, tools: tuple[ToolSpec, ...]) -> None:
        self._template = template
        self._piece = piece
        self._tools = tools

    def begins(self, text: str) -> bool:
        return True

    def passed(self) -> str:
        return ""

    def counts(self, run: Sequence[Message], place: int) -> Sequence[int]:
        return range(min(len(run), ITEMS_MOST), 0, -1)

    def units(self, run: tuple[Message, ...], place: int) -> list[tuple[Message, ...]]:
        return self._template.units(run)

    def piece(self, unit: tuple[Message, ...], place: int) -> Ids:
        return self._piece(unit, not place, self._tools)

    def opening(self, place: int) -> Ids:
        return self._template.opening_ids(first=not place, tools=self._tools)

    def frame(self, turn: Turn, sent: Sent, place: int) -> Frame | None:
        return Frame(opening=self.opening(place))

    def ending(self) -> Ids:
        return self._template.header_ids


class Whole:
    """Of a conversation that is rendered as a whole. Raises AssemblyError where its turns are not found in the text."""

    def __init__(
        self,
        template: Template,
        encode: Encode,
        messages: tuple[Message, ...],
        tools: tuple[ToolSpec, ...],
        recognition: Recognition,
        *,
        keep_reasoning: bool,
    ) -> None:
        groups = list(_groups(messages, recognition))
        marked = template.whole([message for message, _, _ in groups], tools)
        self._text, self._sentinel = marked.text, marked.sentinel
        regions = iter(template.turns(marked, sum(message.role is Role.ASSISTANT for message, _, _ in groups)))
        self._counts = {place: count for message, place, count in groups if message.role is Role.ASSISTANT}
        self._regions = {place: next(regions) for place in self._counts}
        self._end = len(marked.text) - len(template.header)
        self._family, self._encode, self._keep = template.family, encode, keep_reasoning
        self._count = len(messages)
        self._at = 0

    def begins(self, text: str) -> bool:
        found = self._text.startswith(text)
        self._at = len(text) if found else 0
        return found

    def passed(self) -> str:
        return self._text[: self._at]

    def counts(self, run: Sequence[Message], place: int) -> Sequence[int]:
        return (self._counts[place],)

    def units(self, run: tuple[Message, ...], place: int) -> list[tuple[Message, ...]]:
        return [run]

    def piece(self, unit: tuple[Message, ...], place: int) -> Ids:
        if place in self._regions:
            return self._up_to(self._regions[place].end)
        behind = place + len(unit)
        if behind < self._count and behind not in self._regions:
            # Messages of another role follow: the text between two turns is one part.
            return self._up_to(self._at)
        return self._up_to(self._regions[behind].start if behind < self._count else self._end)

    def opening(self, place: int) -> Ids:
        return self._encode(self._text[self._at : self._regions[place].body], self._sentinel)

    def frame(self, turn: Turn, sent: Sent, place: int) -> Frame | None:
        region = self._regions[place]
        body = Marked(text=self._text[region.body : region.stop], sentinel=self._sentinel).plain()
        first = next(iter(scan(body, tools=None, family=self._family)), None)
        thought = first if first is not None and first.kind is SpanKind.REASONING else None
        begun = thought.stop if thought else 0
        if not _stands(sent.message, body[begun:]):
            return None
        wanted = sent.message.reasoning.strip() or turn.call.answer.reasoning.strip()
        # What is printed empty stands for what was dropped, unless it was sampled so.
        shown = thought is not None and turn.reasons and thought.text.strip() == wanted
        reasoning = (self._keep and turn.reasons) or shown
        printed = 0 if reasoning or thought is None else begun
        opening = self._encode(self._text[self._at : region.body + printed], self._sentinel)
        self._at = region.end
        return Frame(opening=opening, reasoning=reasoning)

    def ending(self) -> Ids:
        return self._up_to(len(self._text))

    def _up_to(self, place: int) -> Ids:
        start, self._at = self._at, place
        return self._encode(self._text[start:place], self._sentinel)


def _stands(message: Message, body: str) -> bool:
    """Whether the template prints the text and the calls of a message; how they are spelled does not matter."""
    return message.text.strip() in body and all(call.name in body for call in message.tool_calls)


def _groups(messages: tuple[Message, ...], recognition: Recognition) -> Iterator[tuple[Message, int, int]]:
    """The messages, those that are one answer of ours as one; with their places and numbers."""
    named = recognition.named(messages)
    place = 0
    while place < len(messages):
        run = tuple(takewhile(lambda each: each.role is Role.ASSISTANT, messages[place : place + ITEMS_MOST]))
        count = next((count for count in range(len(run), 1, -1) if _is_one(run[:count], recognition, named)), 1)
        yield (messages[place] if count == 1 else recognition.read(run[:count]).message), place, count
        place += count


def _is_one(run: tuple[Message, ...], recognition: Recognition, named: Collection[Turn]) -> bool:
    sent = recognition.read(run)
    return bool(recognition.whole(sent, (), named) or recognition.begun(sent, (), named))
