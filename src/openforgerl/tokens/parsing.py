"""Sampled ids to the events of an answer, while they stream in. What cannot be parsed is the text that it is.

A call of a tool that was not offered is a call all the same: the harness answers it with its own error, as it would
the deployed model. Control tokens in mid-answer are shown as text; only the last id can end the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from openforgerl.records import (
    CallEvent,
    EngineFinish,
    Finish,
    Message,
    ReasoningDelta,
    Role,
    Span,
    SpanKind,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallEnded,
    ToolCallStarted,
    ToolSpec,
)
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.decoding import IncrementalDecoder
from openforgerl.tokens.families import HERMES, Family
from openforgerl.tokens.markup import Part, Scanner, held, merged


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """A whole answer, understood."""

    events: list[CallEvent]
    """The deltas that `feed` held back."""
    answer: Message
    spans: tuple[Span, ...]
    finish: Finish | None
    """None where the engine did not finish the call."""
    ends_turn: bool
    """The last sampled id is an end-of-turn id."""
    counters: Mapping[str, int]
    """unparsed_calls: what looked like a call and is text; shown_specials: control tokens in mid-answer."""


def callable_tools(tools: Sequence[ToolSpec], tool_choice: str) -> Sequence[ToolSpec] | None:
    """The tools that may be called; None where markup of calls is text like any other."""
    return tools if tools and tool_choice != "none" else None


class StopStrings:
    """Finds the stop string that is complete first; holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None

    @property
    def asked(self) -> bool:
        return bool(self._stops)

    def feed(self, text: str) -> str:
        """The text that is certainly shown; nothing once a stop string matched."""
        if self.matched is not None or not text:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        found = [(buffer.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in buffer]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return buffer[: end - len(self.matched)]
        keep = held(buffer, self._stops)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text


class AnswerParser:
    """One answer. Feed it the sampled ids in any chunks, then finish it once; the outcome is the same."""

    def __init__(
        self,
        codec: Codec,
        *,
        tools: Sequence[ToolSpec],
        stop: Sequence[str],
        mint: Callable[[], str],
        tool_choice: str = "auto",
        family: Family = HERMES,
    ) -> None:
        self._codec = codec
        self._mint = mint
        self._decoder = IncrementalDecoder(codec)
        self._stops = StopStrings(stop)
        self._scanner = Scanner(tools=callable_tools(tools, tool_choice), family=family)
        self._plain_specials = codec.special_ids - {codec.specials.get(family.opening, -1)}
        """Control tokens that are no markup."""
        self._parts: list[Part] = []
        self._calls: list[ToolCall] = []
        self._fed = 0
        self._last: int | None = None
        """An end-of-turn id that ends the turn unless more ids follow."""
        self._shown_specials = 0
        self._finished = False

    @property
    def stop_string(self) -> str | None:
        """Set once a stop string matched: the caller then closes the engine."""
        return self._stops.matched

    def feed(self, ids: Sequence[int]) -> list[CallEvent]:
        """Deltas that are certain: no half character, nothing that may be the start of markup or of a stop string."""
        shown: list[int] = []
        for token_id in ids:
            if self._last is not None:
                shown.append(self._last)
            self._last = token_id if token_id in self._codec.stop_ids else None
            if self._last is None:
                shown.append(token_id)
        self._fed += len(ids)
        # A stop string ends the count of shown control tokens in mid-chunk.
        chunks = [[token_id] for token_id in shown] if self._stops.asked else [shown]
        return [event for chunk in chunks for event in self._decode(chunk)]

    def shown(self) -> int:
        """How many of the fed ids have their text completely emitted."""
        if self._finished and self.stop_string is None:
            return self._fed
        return self._decoder.ids_before(self._scanner.resolved)[0]

    def finish(self, finish: EngineFinish | None) -> ParsedAnswer:
        """No more ids come. `finish` is None where the engine was left before its end."""
        self._finished = True
        rest = self._stops.feed(self._decoder.flush()) + self._stops.flush()
        events = self._events(self._scanner.feed(rest) + self._scanner.finish())
        parts = merged(self._parts)
        counters = {"unparsed_calls": self._scanner.unparsed_calls, "shown_specials": self._shown_specials}
        return ParsedAnswer(
            events=events,
            answer=Message(
                role=Role.ASSISTANT,
                text=_joined(parts, SpanKind.TEXT),
                reasoning=_joined(parts, SpanKind.REASONING),
                tool_calls=tuple(self._calls),
            ),
            spans=tuple(self._span(part) for part in parts),
            finish=self._reason(finish),
            ends_turn=self._last is not None,
            counters={name: count for name, count in counters.items() if count},
        )

    def _decode(self, ids: Sequence[int]) -> list[CallEvent]:
        if self.stop_string is None:
            self._shown_specials += sum([token_id in self._plain_specials for token_id in ids])
        text = self._stops.feed("".join([self._decoder.feed(token_id) for token_id in ids]))
        return self._events(self._scanner.feed(text)) if text else []

    def _reason(self, finish: EngineFinish | None) -> Finish | None:
        if self.stop_string is not None:
            return Finish.STOP_STRING
        if finish is EngineFinish.LENGTH:
            return Finish.LENGTH
        if finish is EngineFinish.STOP:
            return Finish.TOOL_CALLS if self._calls else Finish.STOP
        return None

    def _events(self, parts: Iterable[Part]) -> list[CallEvent]:
        events: list[CallEvent] = []
        for part in parts:
            self._parts.append(part)
            if part.kind is SpanKind.TOOL_CALL:
                events += self._call_events(part)
            elif part.text:
                reasoning = part.kind is SpanKind.REASONING
                events.append(ReasoningDelta(text=part.text) if reasoning else TextDelta(text=part.text))
        return events

    def _call_events(self, part: Part) -> list[CallEvent]:
        index, call = len(self._calls), ToolCall(id=self._mint(), name=part.name, arguments=part.arguments)
        self._calls.append(call)
        return [
            ToolCallStarted(index=index, id=call.id, name=call.name),
            ToolArgumentsDelta(index=index, text=call.arguments),
            ToolCallEnded(index=index),
        ]

    def _span(self, part: Part) -> Span:
        start, start_chars = self._decoder.ids_before(part.start)
        stop, stop_chars = self._decoder.ids_until(part.stop)
        exact = (start_chars, stop_chars) == (part.start, part.stop)
        return Span(kind=part.kind, start=start, stop=stop, exact=exact)


def _joined(parts: Iterable[Part], kind: SpanKind) -> str:
    return "".join(part.text for part in parts if part.kind is kind)
