"""The right prompt of a random history, found by brute force from the laws and the recorded calls alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from openforgerl.records import Message, RecordedCall, ToolSpec
from random_histories import History, Kept, text_start, visible
from token_world import TokenWorld

Ids = tuple[int, ...]


class Oracle:
    """Of one prompt."""

    def __init__(self, world: TokenWorld, *, keep: bool, history: History, tools: tuple[ToolSpec, ...]) -> None:
        self.world = world
        self.keep = keep
        self.history = history
        self.ids: Ids = ()
        self.counters: Counter[str] = Counter()
        self._header = world.ids("<|im_start|>assistant\n")
        self._ends: list[int] = []
        self._used: set[str] = set()
        self._messages = 0
        for turn in history.turns:
            self._add(turn, tools)
        self.ids += self._header

    def _add(self, turn: Message | Kept, tools: tuple[ToolSpec, ...]) -> None:
        calls = self._candidates(turn) if isinstance(turn, Kept) else []
        messages = turn.messages if isinstance(turn, Kept) else (turn,)
        if calls:
            self.counters["ambiguous_turns"] += len(calls) > 1
            call = min(calls, key=self._rank)
            self._used.add(call.call_id)
            self.ids += self._header + self._body(call, turn)
            self._end(len(messages))
            return
        for message in messages:
            if isinstance(turn, Kept):
                self.counters["reencoded_turns" if self._ours(message) else "foreign_turns"] += 1
            self.ids += tuple(self.world.template.piece_ids((message,), first=not self.ids, tools=tools).tolist())
            self._end(1)

    def _end(self, messages: int) -> None:
        self._messages += messages
        self._ends.append(len(self.ids))

    def _candidates(self, kept: Kept) -> list[RecordedCall]:
        """The calls whose unchanged answer, or its beginning, these messages are."""
        if kept.call is None:
            return []
        free = [call for call in self.world.calls if call.call_id not in self._used]
        if any(self._minted(message) for message in kept.messages):
            return [call for call in free if call is kept.call]
        free = [call for call in free if not self._named(call)]
        if kept.stop < 0:
            return [call for call in free if content(call) == content(kept.call)]
        text = "".join(message.text for message in kept.messages).strip()
        count = sum(len(message.tool_calls) for message in kept.messages)
        cut = [call for call in free if call.delivered.state != "full" and call.answer.text.startswith(text)]
        return [call for call in cut if content(call)[1][:count] == content(kept.call)[1][:count]]

    def _minted(self, message: Message) -> bool:
        known = {each.id for call in self.world.calls for each in call.answer.tool_calls}
        return any(each.id.replace("_", "") in known for each in message.tool_calls)

    def _named(self, call: RecordedCall) -> bool:
        """Whether a message of the history names it by an id."""
        own = {each.id for each in call.answer.tool_calls}
        sent = (each.id.replace("_", "") for message in self.history.messages for each in message.tool_calls)
        return not own.isdisjoint(sent)

    def _ours(self, message: Message) -> bool:
        return self._minted(message) or self.ids + self._header in self.world.prompts

    def _rank(self, call: RecordedCall) -> tuple[int, int, int, int]:
        prompt = self.world.prompts[call.index]
        units = sum(end <= shared(prompt, self.ids) for end in self._ends)
        before = self.history.messages[: self._messages]
        messages = shared(self.world.requests[call.index].messages, before)
        late = 2 if prompt != self.ids + self._header else int(call.delivered.state == "prefix")
        return -units, -messages, late, call.index

    def _body(self, call: RecordedCall, kept: Kept) -> Ids:
        """Of a turn, with its closing."""
        ids, text = visible(self.world, call), self.world.codec.decode(visible(self.world, call))
        sent = "".join(message.reasoning for message in kept.messages)
        start = 0 if self.keep or sent else text_start(text)
        stop = kept.stop if kept.stop >= 0 else len(text)
        self.counters["cut_turns"] += kept.stop >= 0
        spelled = self._between(ids, text, start, stop)
        end = call.sampled_ids[len(ids) :] if kept.stop < 0 else ()
        return spelled + end + self.world.ids("\n" if end == (self.world.end,) else "<|im_end|>\n")

    def _between(self, ids: Ids, text: str, start: int, stop: int) -> Ids:
        """Ids of text[start:stop]: the sampled ones that lie within, the rest encoded anew."""
        texts = [self.world.codec.decode(ids[:count]) for count in range(len(ids) + 1)]
        whole = [count for count, part in enumerate(texts) if text.startswith(part)]
        inside = [count for count in whole if start <= len(texts[count]) <= stop]
        if not inside:
            self.counters["split_tokens"] += 1
            return self.world.codec.encode(text[start:stop])
        first, last = min(inside), max(inside)
        head, rest = text[start : len(texts[first])], text[len(texts[last]) : stop]
        self.counters["split_tokens"] += bool(head) + bool(rest)
        return self.world.codec.encode(head) + ids[first:last] + self.world.codec.encode(rest)


def content(call: RecordedCall) -> tuple[str, list[tuple[str, str]]]:
    return call.answer.text.strip(), [(each.name, each.arguments) for each in call.answer.tool_calls]


def shared(left: Sequence[object], right: Sequence[object]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))
