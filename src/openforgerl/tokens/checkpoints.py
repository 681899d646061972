"""Where a conversation that grows is taken up again: the beginning of a prompt is put together once.

Exact or not at all: a beginning is reused only if no call that became known since could change a choice made in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from openforgerl.records import Message, ToolSpec
from openforgerl.tokens.prefixes import IdTree, Node
from openforgerl.tokens.recognition import Recognition, content_of, ids_of
from openforgerl.tokens.turns import Turn

KEPT_MOST = 8
"""Conversations of one session that are taken up again: the main one and its sub-agents."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """Of the turns so far: which calls, if they were recorded now, could change what was chosen."""

    contents: set[Hashable] = field(default_factory=set)
    """One more answer of such a content might be chosen, or count as a candidate."""
    single: dict[Hashable, int] = field(default_factory=dict)
    """Contents whose turns stand behind their very prompts, where no later call is preferred: how many of their
    places had one candidate. One more makes them ambiguous, and changes nothing else."""
    ids: set[str] = field(default_factory=set)
    """Of tool calls, and marks."""
    lengths: set[int] = field(default_factory=set)
    """Of the prompts behind which a turn of ours would have been one that was changed."""
    cuts: bool = False
    """Some message might be the beginning of an answer."""
    latest: int = -1
    """The greatest index of a call that was chosen."""

    def copy(self) -> Watch:
        return Watch(
            contents=set(self.contents), single=dict(self.single), ids=set(self.ids), lengths=set(self.lengths),
            cuts=self.cuts, latest=self.latest,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A prompt up to its last messages of one role."""

    sent: tuple[Message, ...]
    messages: tuple[Message, ...]
    """As they were put together: with the reasoning that marks stand for."""
    tools: tuple[ToolSpec, ...]
    text: str
    """Of a conversation that is rendered as a whole: these messages in it."""
    ids: tuple[int, ...]
    """At least `length` of them count."""
    length: int
    ends: tuple[int, ...]
    used: frozenset[Turn]
    named: frozenset[Turn]
    counters: Counter[str]
    watch: Watch
    shares: tuple[str | None, int]
    """The call that shares the most leading ids, and their number."""
    node: Node
    """In the tree of messages, of these or of fewer."""
    news: int
    """What was known: of the recognition, and of the tree of ids."""
    calls: int

    def begins(self, sent: tuple[Message, ...], messages: tuple[Message, ...]) -> bool:
        count = len(self.messages)
        return sent[:count] == self.sent and (messages is sent or messages[:count] == self.messages)


class Checkpoints:
    """Of one session, the latest first."""

    def __init__(self, recognition: Recognition, tree: IdTree) -> None:
        self._recognition = recognition
        self._tree = tree
        self._kept: tuple[Checkpoint, ...] = ()

    def nearest(
        self, sent: tuple[Message, ...], messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]
    ) -> Checkpoint | None:
        """The longest one that these messages begin with; it may be out of date."""
        fitting = [each for each in self._kept if each.begins(sent, messages) and each.tools == tools]
        return max(fitting, key=lambda each: len(each.messages), default=None)

    def keep(self, checkpoint: Checkpoint, instead: Checkpoint | None) -> None:
        others = [each for each in self._kept if each is not instead]
        self._kept = (checkpoint, *others)[:KEPT_MOST]

    def current(self, kept: Checkpoint, rest: tuple[Message, ...]) -> Checkpoint | None:
        """The same beginning in front of `rest`, with what is known by now; None where it must be made anew."""
        watch, counters = kept.watch, Counter(kept.counters)
        if not watch.lengths.isdisjoint(self._tree.prompt_lengths[kept.calls :]):
            return None
        news = self._recognition.news[kept.news :]
        new = {turn for turn, is_new in news if is_new}
        if any(turn not in new for turn, _ in news) or any(self._matters(turn, watch) for turn in new):
            return None
        named = self._recognition.named(rest)
        if any(turn not in new and self._matters_named(turn, kept) for turn in named - kept.named):
            return None
        single = dict(watch.single)
        for content in [content_of(turn) for turn in new - named if content_of(turn) in single]:
            counters["ambiguous_turns"] += single[content]
            single[content] = 0
        return replace(kept, counters=counters, named=kept.named | named, watch=replace(watch, single=single))

    def _matters(self, turn: Turn, watch: Watch) -> bool:
        """Whether a turn that was not known then could have made a difference."""
        call = turn.call
        return (
            content_of(turn) in watch.contents
            or call.call_id in watch.ids
            or not ids_of((call.answer,)).isdisjoint(watch.ids)
            or (watch.cuts and call.delivered.state != "full")
            or call.index < watch.latest
        )

    def _matters_named(self, turn: Turn, kept: Checkpoint) -> bool:
        """Whether it makes a difference that a turn is now named: it could have been a candidate."""
        content = content_of(turn)
        return kept.watch.cuts or content in kept.watch.contents or content in kept.watch.single
