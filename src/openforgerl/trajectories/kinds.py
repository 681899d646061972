"""What each call of a session is for: main, subagent, summary or side, by one versioned rule at the seal.

Only `side` changes a mask; the others say where a turn belongs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from openforgerl.records import CallKind, Message, RecordedCall, Role
from openforgerl.trajectories.prompts import in_order, message_lists, parents

KINDS_VERSION = 2

_AGENT_LABELS = frozenset({"x-claude-code-agent-id", "x-parent-session-id"})

_SUMMARY_CHARACTERS = 40
"""A shorter text may stand in a later message by chance: a title in a file name."""

_Key = tuple[str, ...]


def kinds(calls: Sequence[RecordedCall]) -> dict[str, CallKind]:
    """Call id -> kind. Raises ValueError where the calls are not those of one session.

    A session *uses tools* if any of its calls offers some; one that does not is main throughout, but for rule 2. A
    call *holds a turn* of an earlier call if its list has an assistant message which that call answered: with one of
    its tool-call ids, or the same tool names in the same order, or the same text but for white space at the ends. Of
    several such calls, one with the same leading system messages and tools, then the latest. The first rule that fits:

    1. side: it offers no tools though the session uses them, holds no turn, and nothing extends it: it is nobody's
       parent in the trie, its answer comes back behind its last message in no later call, and is no summary as in 3.
       (Titles, quota probes.)
    2. subagent: a label names an agent (x-claude-code-agent-id, x-parent-session-id).
    3. summary: it offers no tools though the session uses them, and either the last turn that it holds is of a call
       that offers some, or its text (40 characters and more) stands in a message that a later call brings first, be
       it as a turn of the assistant.
    4. It continues a call (its parent in the trie, else the one whose turn it holds last, else a summary whose text
       stands in its messages): a subagent if that is one, else main.
    5. A new context: the first of the session is the main root. A later one is main if its leading system messages
       and its tools equal those of the main root (a compaction that kept no turn), else a subagent.
    """
    return kinds_of(in_order(calls), parents(calls))


def kinds_of(ordered: Sequence[RecordedCall], parent_of: Mapping[str, str | None]) -> dict[str, CallKind]:
    """As `kinds`, where the trie is known."""
    if not any(call.tools for call in ordered):
        return {call.call_id: CallKind.SUBAGENT if _is_labelled(call) else CallKind.MAIN for call in ordered}
    rule = _Rule(ordered, parent_of)
    return {call.call_id: rule.decide(call) for call in ordered}


class _Rule:
    """The rule, call by call in the order of sampling."""

    def __init__(self, ordered: Sequence[RecordedCall], parent_of: Mapping[str, str | None]) -> None:
        self._ordered = ordered
        self._lists = message_lists(ordered)
        self._parents = parent_of
        self._extended = set(parent_of.values())
        self._last_return = _last_returns(ordered, self._lists)
        self._calls = {call.call_id: call for call in ordered}
        self._contexts = {call.call_id: (_leading_system(self._lists[call.call_id]), call.tools) for call in ordered}
        self._kinds: dict[str, CallKind] = {}
        self._answers: dict[tuple[object, _Key], RecordedCall] = {}
        self._summaries: list[RecordedCall] = []
        self._main_root: RecordedCall | None = None

    def decide(self, call: RecordedCall) -> CallKind:
        kind = self._kinds[call.call_id] = self._kind(call)
        for key in _keys(call.answer):
            self._answers[self._contexts[call.call_id], key] = self._answers[None, key] = call
        if kind is CallKind.SUMMARY:
            self._summaries.append(call)
        return kind

    def _kind(self, call: RecordedCall) -> CallKind:
        held = self._held(call)
        sums_up = not call.tools and (bool(held.tools) if held else self._starts_a_context(call))
        if not call.tools and held is None and not sums_up and not self._is_extended(call):
            return CallKind.SIDE
        if _is_labelled(call):
            return CallKind.SUBAGENT
        if sums_up:
            return CallKind.SUMMARY
        before = self._continued(call, held)
        if before is not None:
            return CallKind.SUBAGENT if self._kinds[before.call_id] is CallKind.SUBAGENT else CallKind.MAIN
        return self._kind_of_new_context(call)

    def _held(self, call: RecordedCall) -> RecordedCall | None:
        """The call whose turn stands last in this call's list."""
        context = self._contexts[call.call_id]
        for message in reversed(self._lists[call.call_id]):
            for key in _keys(message):
                found = self._answers.get((context, key)) or self._answers.get((None, key))
                if found is not None:
                    return found
        return None

    def _is_extended(self, call: RecordedCall) -> bool:
        last = self._lists[call.call_id][-1:]
        returns = (self._last_return.get((last, key), -1) for key in _keys(call.answer))
        return call.call_id in self._extended or any(index > call.index for index in returns)

    def _starts_a_context(self, call: RecordedCall) -> bool:
        """A harness that shows the conversation as text holds no turn; what it makes of the answer tells it: a part of
        a message (pi), or a turn behind another question (OpenCode)."""
        said = call.answer.text.strip()
        if len(said) < _SUMMARY_CHARACTERS:
            return False
        place = self._ordered.index(call)
        before = {message for earlier in self._ordered[: place + 1] for message in earlier.messages.new}
        later = (message for call in self._ordered[place + 1 :] for message in call.messages.new)
        return any(said in message.text for message in later if message not in before)

    def _continued(self, call: RecordedCall, held: RecordedCall | None) -> RecordedCall | None:
        parent = self._parents[call.call_id]
        return self._calls[parent] if parent is not None else held or self._summary_in(call)

    def _summary_in(self, call: RecordedCall) -> RecordedCall | None:
        texts = [message.text for message in self._lists[call.call_id]]
        for summary in reversed(self._summaries):
            said = summary.answer.text.strip()
            if said and any(said in text for text in texts):
                return summary
        return None

    def _kind_of_new_context(self, call: RecordedCall) -> CallKind:
        if self._main_root is None:
            self._main_root = call
        alike = self._contexts[call.call_id] == self._contexts[self._main_root.call_id]
        return CallKind.MAIN if alike else CallKind.SUBAGENT


def _leading_system(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(m.text for m in takewhile(lambda m: m.role in (Role.SYSTEM, Role.DEVELOPER), messages))


def _is_labelled(call: RecordedCall) -> bool:
    return any(name.lower() in _AGENT_LABELS and value for name, value in call.labels.items())


def _last_returns(
    ordered: Sequence[RecordedCall], lists: Mapping[str, tuple[Message, ...]]
) -> dict[tuple[tuple[Message, ...], _Key], int]:
    """(the message before it, key of an assistant message) -> index of the last call that brought it anew."""
    found = {}
    for call in ordered:
        messages = lists[call.call_id]
        for place in range(call.messages.cut, len(messages)):
            for key in _keys(messages[place]):
                found[messages[max(place - 1, 0) : place], key] = call.index
    return found


def _keys(message: Message) -> Iterator[_Key]:
    """What an assistant message is recognised by, the surest first."""
    if message.role is not Role.ASSISTANT:
        return
    yield from (("id", call.id) for call in message.tool_calls if call.id)
    if message.tool_calls:
        yield "names", *(call.name for call in message.tool_calls)
    if message.text.strip():
        yield "text", message.text.strip()
