"""Which recorded answer a message of a history is: by the call ids that we minted, else by content.

Canonical content must agree either way. A dropped reasoning does not prevent recognition; a changed one does. A mark
names the call whose reasoning a message carries: it stands for that reasoning, and decides between equal answers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from openforgerl.records import Message, RecordedCall
from openforgerl.tokens.canonical import CanonicalCall, canonical_calls
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.families import Family
from openforgerl.tokens.turns import Spelling, Turn

ITEMS_MOST = 16
"""Consecutive assistant messages that may be one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Consecutive assistant messages as they came back, taken as one."""

    message: Message
    calls: tuple[CanonicalCall, ...]
    key: Hashable
    """Equal for all that may be equal, reasoning and ids aside."""
    minted: frozenset[str]
    """The ids of its calls, without what is not alphanumeric."""

    @property
    def mark(self) -> str:
        return self.message.reasoning_mark


class Recognition:
    """The answers of one session."""

    def __init__(self, codec: Codec, family: Family, *, template_keeps_reasoning: bool, keep_reasoning: bool) -> None:
        self._codec = codec
        self._family = family
        self._template_keeps = template_keeps_reasoning
        self._keep = keep_reasoning
        self._turns: dict[str, Turn] = {}
        self._by_minted: dict[str, Turn] = {}
        self._by_content: dict[Hashable, list[Turn]] = {}
        self._read: dict[tuple[Message, ...], Sent] = {}
        self.news: list[tuple[Turn, bool]] = []
        """What became known, in its order: a turn that is new, or (False) more of the delivery of an old one."""

    def remember(self, call: RecordedCall) -> None:
        """A call that may come back; a second time where more became known of its delivery."""
        if call.call_id in self._turns:
            turn = self._turns[call.call_id]
            turn.call = call
            self.news.append((turn, False))
            return
        turn = self._turns[call.call_id] = Turn(self._codec, self._family, call)
        for tool_call in call.answer.tool_calls:
            self._by_minted[_alphanumeric(tool_call.id)] = turn
        self._by_content.setdefault(content_of(turn), []).append(turn)
        self.news.append((turn, True))

    def marked(self, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], int]:
        """The messages, those with a mark of ours with the reasoning that it stands for, and the number of others.

        A reasoning that was sent and differs is the harness's own; of neighbours with one mark the first carries it.
        """
        if not any([message.reasoning_mark for message in messages]):
            return messages, 0
        found: list[Message] = []
        unknown, before = 0, ""
        for message in messages:
            mark = message.reasoning_mark
            if mark:
                message, known = self._carrying(message, again=mark == before)
                unknown += not known
            before = mark
            found.append(message)
        return tuple(found), unknown

    def _carrying(self, message: Message, *, again: bool) -> tuple[Message, bool]:
        turn = self._turns.get(message.reasoning_mark)
        if turn is None:
            return replace(message, reasoning_mark=""), False
        recorded = turn.call.answer.reasoning
        if again or message.reasoning.strip() not in ("", recorded.strip()):
            return message, True
        return replace(message, reasoning=recorded), True

    def read(self, messages: tuple[Message, ...]) -> Sent:
        """Consecutive assistant messages, understood once."""
        if messages not in self._read:
            self._read[messages] = _read(messages)
        return self._read[messages]

    def ours(self, sent: Sent) -> bool:
        """Whether a call of it has an id that we minted."""
        return not sent.minted.isdisjoint(self._by_minted)

    def named(self, messages: Iterable[Message]) -> set[Turn]:
        """The turns that ids and marks of these messages name: none is taken for a message that does not name it."""
        found: set[Turn] = set()
        for message in messages:
            ids = [_alphanumeric(call.id) for call in message.tool_calls]
            found.update(self._by_minted[minted] for minted in ids if minted in self._by_minted)
            if message.reasoning_mark in self._turns:
                found.add(self._turns[message.reasoning_mark])
        return found

    def whole(self, sent: Sent, used: Collection[Turn], named: Collection[Turn] = ()) -> list[Turn]:
        """The unused turns that mean the same; `named` are those that messages name. A mark leaves the one it names."""
        owners = self._owners(sent)
        pool = self._by_content.get(sent.key, []) if owners is None else owners
        marked = self._turns.get(sent.mark)
        taken = self._taken(sent, used, named)
        found = [turn for turn in pool if turn not in taken and _agrees(turn, sent)]
        return [marked] if marked is not None and marked in found else found

    def begun(self, sent: Sent, used: Collection[Turn], named: Collection[Turn] = ()) -> list[Turn]:
        """The unused turns, not known to be delivered in full, of which it is the beginning."""
        owners = self._owners(sent)
        pool = self._turns.values() if owners is None else owners
        taken = self._taken(sent, used, named)
        cut = (turn for turn in pool if turn not in taken and turn.call.delivered.state != "full")
        return [turn for turn in cut if self._begun(turn, sent) is not None]

    def spelling(self, turn: Turn, sent: Sent, reasoning: bool | None = None) -> Spelling:
        """A turn that agrees, as its ids; with its reasoning, without it, or (None) as the message shows it."""
        return turn.whole(reasoning=self._keeps_reasoning(turn, sent) if reasoning is None else reasoning)

    def beginning(self, turn: Turn, sent: Sent, reasoning: bool | None = None) -> Spelling:
        """A turn of which it is the beginning, as the ids of that."""
        found = self._begun(turn, sent, reasoning)
        if found is None:
            raise ValueError(f"the message does not begin the answer of call {turn.call.call_id}")
        return found

    def _begun(self, turn: Turn, sent: Sent, reasoning: bool | None = None) -> Spelling | None:
        shown = self._keeps_reasoning(turn, sent) if reasoning is None else reasoning
        return turn.beginning(sent.message, reasoning=shown)

    def names_none(self, sent: Sent) -> bool:
        """Whether its ids name no turn, so that content alone decides."""
        return self._owners(sent) is None

    def _taken(self, sent: Sent, used: Collection[Turn], named: Collection[Turn]) -> Collection[Turn]:
        """The turns that this message is not: where no id names one, those that other messages name."""
        marked = self._turns.get(sent.mark)
        return used if self._owners(sent) else {*used, *(turn for turn in named if turn is not marked)}

    def _owners(self, sent: Sent) -> list[Turn] | None:
        """The turns that its ids name; None where they name none."""
        owners = {self._by_minted[minted] for minted in sent.minted if minted in self._by_minted}
        return list(owners) or None

    def _keeps_reasoning(self, turn: Turn, sent: Sent) -> bool:
        shown = self._template_keeps and bool(sent.message.reasoning.strip())
        return self._keep or shown or not turn.call.answer.reasoning.strip()


def _alphanumeric(call_id: str) -> str:
    return "".join(filter(str.isalnum, call_id))


def content_of(turn: Turn) -> Hashable:
    """Equal for the `Sent` that may be this turn."""
    return _key(turn.call.answer, turn.calls)


def ids_of(messages: Iterable[Message]) -> set[str]:
    """The ids of all calls, as they are compared."""
    return {_alphanumeric(call.id) for message in messages for call in message.tool_calls}


def _key(message: Message, calls: Iterable[CanonicalCall]) -> Hashable:
    return (message.text.strip(), tuple(call.key for call in calls))


def _read(messages: Sequence[Message]) -> Sent:
    calls = tuple(call for message in messages for call in message.tool_calls)
    message = replace(
        messages[0],
        text="".join(message.text for message in messages),
        reasoning="".join(message.reasoning for message in messages),
        tool_calls=calls,
    )
    canonical = canonical_calls(calls)
    minted = frozenset(_alphanumeric(call.id) for call in calls)
    return Sent(message=message, calls=canonical, key=_key(message, canonical), minted=minted)


def _agrees(turn: Turn, sent: Sent) -> bool:
    answer, message = turn.call.answer, sent.message
    same_text = answer.text.strip() == message.text.strip()
    same_reasoning = message.reasoning.strip() in ("", answer.reasoning.strip())
    same_calls = len(turn.calls) == len(sent.calls) and all(
        recorded.agrees(call) for recorded, call in zip(turn.calls, sent.calls, strict=True)
    )
    return same_text and same_reasoning and same_calls
