"""A recorded answer as a turn of a later prompt: which of its ids spell what the harness kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from openforgerl.records import Message, RecordedCall, SpanKind
from openforgerl.tokens.canonical import canonical_calls
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.decoding import IncrementalDecoder, decode_all
from openforgerl.tokens.families import Family
from openforgerl.tokens.ids import Ids, as_ids
from openforgerl.tokens.markup import REASONING_CLOSE, Part, reasoning_start, scan
from openforgerl.tokens.parsing import callable_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """The body of a turn in a prompt."""

    ids: Ids
    ended: bool = False
    """Its last id is a sampled end-of-turn id."""
    split_tokens: int = 0
    """Sampled ids of which only a part was kept; that part is encoded anew."""
    cut: bool = False
    """Only the beginning of the answer was kept."""


class Turn:
    """One recorded answer."""

    def __init__(self, codec: Codec, family: Family, call: RecordedCall) -> None:
        self.call = call
        self._family = family
        self.calls = canonical_calls(call.answer.tool_calls)
        self._codec = codec
        self._ended = bool(call.sampled_ids) and call.sampled_ids[-1] in codec.stop_ids
        self._visible = call.sampled_ids[:-1] if self._ended else call.sampled_ids

    @cached_property
    def _decoded(self) -> tuple[str, IncrementalDecoder]:
        return decode_all(self._codec, self._visible)

    @cached_property
    def _seen(self) -> str:
        """The text of the sampled ids, up to the stop string where one ended the answer."""
        text, stop = self._decoded[0], self.call.stop_string
        return text[: text.find(stop)] if stop and stop in text else text

    @cached_property
    def _parts(self) -> tuple[Part, ...]:
        tools = callable_tools(self.call.tools, self.call.tool_choice)
        return scan(self._seen, tools=tools, family=self._family)

    @property
    def reasons(self) -> bool:
        """Whether it begins with reasoning, be it an empty one."""
        return self._reasoning_stop > 0

    @property
    def _reasoning_stop(self) -> int:
        """Where the reasoning ends in the text, markup included; 0 where there is none."""
        return self._parts[0].stop if self._parts and self._parts[0].kind is SpanKind.REASONING else 0

    def whole(self, *, reasoning: bool) -> Spelling:
        """Everything that was seen of the answer, with or without its reasoning."""
        start = 0 if reasoning else self._reasoning_stop
        if self.call.stop_string is not None:
            return self._spelled(start, len(self._seen))
        if start == 0:
            return Spelling(ids=as_ids(self.call.sampled_ids), ended=self._ended)
        body = self._spelled(start, len(self._seen))
        rest = self.call.sampled_ids[len(self._visible) :]
        return Spelling(ids=as_ids([*body.ids, *rest]), ended=self._ended, split_tokens=body.split_tokens)

    def beginning(self, kept: Message, *, reasoning: bool) -> Spelling | None:
        """The beginning of the answer that `kept` is; None where it is none, or nothing at all."""
        if not self._reads_as_recorded():
            return None
        recorded, sent = self.call.answer.reasoning.strip(), kept.reasoning.strip()
        if not kept.text.strip() and not kept.tool_calls:
            return self._reasoning_beginning(sent, reasoning=reasoning) if sent else None
        stop = self._end_of(kept)
        if stop is None or sent not in ("", recorded):
            return None
        return self._spelled(0 if reasoning else self._reasoning_stop, stop, cut=True)

    def _reads_as_recorded(self) -> bool:
        """False for a record of other markup, whose ids are then used whole or not at all."""
        text = "".join(part.text for part in self._parts if part.kind is SpanKind.TEXT)
        calls = [part.arguments for part in self._parts if part.kind is SpanKind.TOOL_CALL]
        return text == self.call.answer.text and calls == [call.arguments for call in self.call.answer.tool_calls]

    def _reasoning_beginning(self, sent: str, *, reasoning: bool) -> Spelling | None:
        recorded = self.call.answer.reasoning
        blank = len(recorded) - len(recorded.lstrip())
        if not recorded.startswith(sent, blank):
            return None
        if not reasoning:
            return Spelling(ids=as_ids(()), cut=True)
        if sent == recorded.strip() and self._reasoning_stop < len(self._seen):
            return self._spelled(0, self._reasoning_stop, cut=True)
        stop = reasoning_start(self._seen) + blank + len(sent)
        return self._spelled(0, stop, tail=REASONING_CLOSE, cut=True)

    def _end_of(self, kept: Message) -> int | None:
        """The place in the text behind the kept beginning."""
        calls = canonical_calls(kept.tool_calls)
        if len(calls) > len(self.calls) or not all(map(type(self.calls[0]).agrees, self.calls, calls) if calls else ()):
            return None
        text, sent = self.call.answer.text, kept.text.strip()
        blank = len(text) - len(text.lstrip())
        if not text.startswith(sent, blank):
            return None
        ends = [part.stop for part in self._parts if part.kind is SpanKind.TOOL_CALL]
        stop = ends[len(calls) - 1] if calls else 0
        before = "".join(part.text for part in self._parts if part.kind is SpanKind.TEXT and part.stop <= stop)
        if sent == before.strip():
            return stop
        place = self._place(len(kept.text) if text.startswith(kept.text) else blank + len(sent))
        following = ends[len(calls)] if len(calls) < len(ends) else len(self._seen)
        return place if stop < place <= following else None

    def _place(self, count: int) -> int:
        """The place in the text behind the first `count` characters that a reader sees of it."""
        for part in self._parts:
            if part.kind is SpanKind.TEXT:
                if count <= len(part.text):
                    return part.start + count
                count -= len(part.text)
        return len(self._seen)

    def _spelled(self, start: int, stop: int, *, tail: str = "", cut: bool = False) -> Spelling:
        """Characters [start, stop) of the text: sampled ids, and the parts of ids at both ends encoded anew."""
        text, decoder = self._decoded
        first, first_char = decoder.ids_until(start) if start else (0, 0)
        last, last_char = decoder.ids_before(stop)
        if first > last:
            pieces = [text[start:stop]]
            ids = list(self._codec.encode(text[start:stop]))
        else:
            pieces = [text[start:first_char], text[last_char:stop]]
            ids = [*self._codec.encode(pieces[0]), *self._visible[first:last], *self._codec.encode(pieces[1])]
        ids += self._codec.encode(tail)
        return Spelling(ids=as_ids(ids), split_tokens=sum(map(bool, pieces)), cut=cut)
