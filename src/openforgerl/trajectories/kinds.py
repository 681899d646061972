"""What each call of a session is for: main, subagent, summary or side. Decided at the seal, by one versioned rule.

Only `side` changes a mask; the others say where a turn belongs. Let a session *use tools* if any of its calls offers
some. A *delivered turn* of a call is an assistant message in its list that an earlier call of the session answered:
it has a tool-call id that we minted, or the same tool names in the same order, or the same text (white space at the
ends aside). Then, in this order:

1. side: offers no tools though the session uses them, holds no delivered turn, and nothing extends it: no call has
   it as its parent in the trie, and its answer comes back in no later call. (Titles, quota probes.)
2. subagent: its labels name an agent (x-claude-code-agent-id, x-parent-session-id).
3. summary: offers no tools though the session uses them, and the last call whose turn it holds offers some.
4. It continues another call (its parent in the trie, else the last call whose turn it holds, else a summary whose
   text stands in its messages): the kind of that call, where that is main or subagent; main after a summary.
5. A new context: the first one of the session is the main root. A later one is main if its system messages and tools
   equal those of the main root (a compaction that kept no turn), else a subagent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from openforgerl.records import CallKind, Message, RecordedCall, Role
from openforgerl.trajectories.prompts import in_order, message_lists, parents

KINDS_VERSION = 1

_AGENT_LABELS = frozenset({"x-claude-code-agent-id", "x-parent-session-id"})

_Key = tuple[str, ...]


def kinds(calls: Sequence[RecordedCall]) -> dict[str, CallKind]:
    """Call id -> kind, by the rule above. Raises ValueError where the calls are not those of one session."""
    return kinds_of(in_order(calls), parents(calls))


def kinds_of(ordered: Sequence[RecordedCall], parent_of: Mapping[str, str | None]) -> dict[str, CallKind]:
    """As `kinds`, where the trie is known."""
    if not any(call.tools for call in ordered):
        usual = {call.call_id: CallKind.MAIN for call in ordered}
        return {**usual, **{call.call_id: CallKind.SUBAGENT for call in ordered if _is_labelled(call)}}
    rule = _Rule(ordered, parent_of)
    for call in ordered:
        rule.decide(call)
    return rule.kinds


class _Rule:
    """The rule, call by call in the order of sampling."""

    def __init__(self, ordered: Sequence[RecordedCall], parent_of: Mapping[str, str | None]) -> None:
        self.kinds: dict[str, CallKind] = {}
        self._lists = message_lists(ordered)
        self._parents = parent_of
        self._extended = set(self._parents.values())
        self._last_seen = _last_places(ordered)
        self._answers: dict[_Key, RecordedCall] = {}
        self._summaries: list[RecordedCall] = []
        self._calls = {call.call_id: call for call in ordered}
        self._main_root: RecordedCall | None = None

    def decide(self, call: RecordedCall) -> None:
        kind = self._kind(call)
        self.kinds[call.call_id] = kind
        self._answers.update(dict.fromkeys(_keys(call.answer), call))
        if kind is CallKind.SUMMARY:
            self._summaries.append(call)

    def _kind(self, call: RecordedCall) -> CallKind:
        held = self._held(call)
        if not call.tools and held is None and not self._is_extended(call):
            return CallKind.SIDE
        if _is_labelled(call):
            return CallKind.SUBAGENT
        if not call.tools and held is not None and held.tools:
            return CallKind.SUMMARY
        before = self._continued(call, held)
        if before is not None:
            return CallKind.SUBAGENT if self.kinds[before.call_id] is CallKind.SUBAGENT else CallKind.MAIN
        return self._kind_of_new_context(call)

    def _held(self, call: RecordedCall) -> RecordedCall | None:
        """The call of the last delivered turn in this call's list."""
        for message in reversed(self._lists[call.call_id]):
            for key in _keys(message):
                if key in self._answers:
                    return self._answers[key]
        return None

    def _is_extended(self, call: RecordedCall) -> bool:
        returns = any(self._last_seen.get(key, -1) > call.index for key in _keys(call.answer))
        return returns or call.call_id in self._extended

    def _continued(self, call: RecordedCall, held: RecordedCall | None) -> RecordedCall | None:
        parent = self._parents[call.call_id]
        if parent is not None:
            return self._calls[parent]
        return held or self._summary_in(call)

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
        return CallKind.MAIN if self._context(call) == self._context(self._main_root) else CallKind.SUBAGENT

    def _context(self, call: RecordedCall) -> tuple[object, ...]:
        system = tuple(m.text for m in self._lists[call.call_id] if m.role in (Role.SYSTEM, Role.DEVELOPER))
        return system, call.tools


def _is_labelled(call: RecordedCall) -> bool:
    return any(name.lower() in _AGENT_LABELS and value for name, value in call.labels.items())


def _last_places(ordered: Sequence[RecordedCall]) -> dict[_Key, int]:
    """Key of an assistant message -> index of the last call that brought it anew."""
    return {key: call.index for call in ordered for message in call.messages.new for key in _keys(message)}


def _keys(message: Message) -> Iterator[_Key]:
    """What an assistant message is recognised by, the surest first."""
    if message.role is not Role.ASSISTANT:
        return
    yield from (("id", call.id) for call in message.tool_calls if call.id)
    if message.tool_calls:
        yield "names", *(call.name for call in message.tool_calls)
    if message.text.strip():
        yield "text", message.text.strip()
