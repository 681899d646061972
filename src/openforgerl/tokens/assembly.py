"""Messages to prompt ids: recorded turns are spelled with their recorded ids, everything else is rendered anew.

The harness decides what is in the context; the record decides how it is spelled. Pure: one Assembler a session.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Literal

from openforgerl.errors import AssemblyError
from openforgerl.records import (
    Message,
    MessagesDelta,
    ModelRequest,
    PromptDelta,
    PromptImage,
    RecordedCall,
    Role,
    ToolSpec,
)
from openforgerl.tokens.checkpoints import Checkpoint, Checkpoints, Watch
from openforgerl.tokens.ids import Ids, as_ids, joined, shared_ints
from openforgerl.tokens.prefixes import IdCursor, IdTree, MessagePath, MessageTree
from openforgerl.tokens.recognition import Recognition, Sent, ids_of
from openforgerl.tokens.rendering import Marked
from openforgerl.tokens.scripts import Frame, Pieces, Script, Whole
from openforgerl.tokens.template import Template
from openforgerl.tokens.turns import Spelling, Turn
from openforgerl.tokens.vision import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as ids, and as what is new against earlier calls."""

    ids: tuple[int, ...]
    delta: PromptDelta
    messages: MessagesDelta
    images: tuple[PromptImage, ...]
    counters: Mapping[str, int]
    """Only those that are not 0.

    reencoded_turns: sampled here, changed by the harness; foreign_turns: assistant messages never sampled here;
    ambiguous_turns: several recorded turns agreed; cut_turns: only the beginning of an answer was kept;
    split_tokens: ids of which a part was encoded anew; stripped_lines: system lines removed by rule; unknown_marks:
    marks of reasoning that name no call of this session; whole_renderings: the template makes messages depend on later
    ones, so that the conversation was rendered as a whole; dropped_texts: beside calls, not printed by the template.
    """


class Assembler:
    """Assembles the prompts of one session."""

    def __init__(
        self,
        template: Template,
        *,
        strip_system_lines: Sequence[str] = (),
        history_reasoning: Literal["template", "keep"] = "template",
    ) -> None:
        """`strip_system_lines`: beginnings of lines to remove from system texts (nonces of a harness)."""
        self._template = template
        self._strip = tuple(strip_system_lines)
        self._recognition = Recognition(
            template.codec,
            template.family,
            template_keeps_reasoning=template.keeps_reasoning,
            keep_reasoning=history_reasoning == "keep",
        )
        self._ids = IdTree()
        self._messages = MessageTree()
        self._checkpoints = Checkpoints(self._recognition, self._ids)
        self._keep = history_reasoning == "keep"
        self._grids: dict[str, Grid] = {}
        """Of images that were seen, by sha256."""
        self._pieces: dict[tuple[tuple[Message, ...], bool, tuple[ToolSpec, ...]], Ids] = {}
        self._texts: dict[tuple[str, str], Ids] = {}

    def assemble(self, request: ModelRequest) -> Prompt:
        """The prompt of a request. Raises AssemblyError."""
        sent, stripped = self._stripped(request.messages)
        if not sent:
            raise AssemblyError("messages: [] has nothing to answer; send at least one message")
        self._measure(request)
        messages, unknown = self._recognition.marked(sent)
        kept = self._checkpoints.nearest(sent, messages, request.tools)
        begun = self._checkpoints.current(kept, messages[len(kept.messages) :]) if kept else None
        script = self._script(messages, request.tools)
        if begun and not script.begins(begun.text):
            begun = None
        path = self._messages.path(sent, begun.node.at(len(begun.messages)) if begun else None)
        draft = _Draft(script, self._template, self._recognition, self._ids, path, request.tools)
        if begun is not None:
            draft.take_up(begun)
        draft.add_all(messages)
        parent, cut = path.parent()
        draft.counters.update(stripped_lines=stripped, unknown_marks=unknown)
        draft.counters["whole_renderings"] = int(self._template.depends)
        if self._template.drops_text_of_calls:
            draft.counters["dropped_texts"] = sum(bool(each.text.strip() and each.tool_calls) for each in messages)
        prompt = draft.prompt(MessagesDelta(parent=parent, cut=cut, new=sent[cut:]))
        if self._grids:
            prompt = replace(prompt, images=self._placed(prompt, sent))
        if draft.checkpoint is not None:
            own = sent[: len(draft.checkpoint.messages)]
            self._checkpoints.keep(replace(draft.checkpoint, sent=own, ids=prompt.ids), kept)
        return prompt

    def known(self, request: ModelRequest) -> int:
        """Leading messages that cost nothing, about."""
        found = self._checkpoints.nearest(request.messages, request.messages, request.tools)
        return len(found.messages) if found else 0

    def remember(self, call: RecordedCall) -> None:
        """A committed call may come back as history. A second time, with the same id, it replaces the first.

        Raises AssemblyError where it builds on a call that was not remembered.
        """
        if call.call_id not in self._ids:
            owner, prompt, messages = (call.index, call.call_id), call.prompt, call.messages
            try:
                self._messages.insert(owner, messages.parent, messages.cut, messages.new)
                self._ids.insert(owner, prompt.parent, prompt.cut, as_ids(prompt.new_ids), as_ids(call.sampled_ids))
            except KeyError as error:
                raise AssemblyError(f"call {call.call_id} builds on call {error}, which is not remembered") from error
        if call.sampled_ids:
            self._recognition.remember(call)

    def _script(self, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]) -> Script:
        if not self._template.depends:
            return Pieces(self._template, self._piece, tools)
        return Whole(self._template, self._encoded, messages, tools, self._recognition, keep_reasoning=self._keep)

    def _encoded(self, text: str, sentinel: str) -> Ids:
        """Ids of a part of a rendering; of one seen before, from memory."""
        if (text, sentinel) not in self._texts:
            self._texts[text, sentinel] = self._template.marked_ids(Marked(text=text, sentinel=sentinel))
        return self._texts[text, sentinel]

    def _piece(self, unit: tuple[Message, ...], first: bool, tools: tuple[ToolSpec, ...]) -> Ids:
        """Ids of a unit that is encoded anew; of a unit seen before, from memory."""
        key = (unit, first, tools if first else ())
        if key not in self._pieces:
            ids, vision = self._template.piece_ids(unit, first=first, tools=key[2]), self._template.vision
            grids = [self._grids[image.sha256] for message in unit for image in message.images]
            self._pieces[key] = vision.expanded(ids, grids) if vision and grids else ids
        return self._pieces[key]

    def _measure(self, request: ModelRequest) -> None:
        """The grids of images that are new. Raises AssemblyError."""
        if (vision := self._template.vision) is not None:
            for sha256 in request.images.keys() - self._grids.keys():
                self._grids[sha256] = vision.grid(request.images[sha256])

    def _placed(self, prompt: Prompt, messages: tuple[Message, ...]) -> tuple[PromptImage, ...]:
        names = [image.sha256 for message in messages for image in message.images]
        vision = self._template.vision
        return vision.placed(prompt.ids, [(name, self._grids[name]) for name in names]) if vision and names else ()

    def _stripped(self, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], int]:
        """Messages without the system lines that a rule removes, and their number; a text that was only those goes."""
        if not self._strip:
            return messages, 0
        kept: list[Message] = []
        count = 0
        for message in messages:
            if message.role not in (Role.SYSTEM, Role.DEVELOPER):
                kept.append(message)
                continue
            lines = message.text.splitlines(keepends=True)
            left = [line for line in lines if not line.startswith(self._strip)]
            count += len(lines) - len(left)
            if left or not lines:
                kept.append(replace(message, text="".join(left)))
        return tuple(kept), count


class _Draft:
    """One prompt in the making."""

    def __init__(
        self,
        script: Script,
        template: Template,
        recognition: Recognition,
        tree: IdTree,
        path: MessagePath,
        tools: tuple[ToolSpec, ...],
    ) -> None:
        self._script = script
        self._template = template
        self._recognition = recognition
        self._tree = tree
        self._cursor = tree.cursor()
        self._path = path
        self._tools = tools
        self._begun: tuple[int, ...] = ()
        self._parts: list[Ids] = []
        """Behind what was taken up."""
        self._ends: list[int] = []
        """Where each unit ends, in ids."""
        self._count = 0
        """Messages that are in."""
        self._used: set[Turn] = set()
        self._named: set[Turn] = set()
        self._watch = Watch()
        self.counters: Counter[str] = Counter()
        self.checkpoint: Checkpoint | None = None

    def take_up(self, begun: Checkpoint) -> None:
        """Go on behind the messages of a checkpoint."""
        self._begun = begun.ids[: begun.length]
        self._count, self._ends = len(begun.messages), list(begun.ends)
        self._used, self._named = set(begun.used), set(begun.named)
        self._watch, self.counters = begun.watch.copy(), Counter(begun.counters)
        self._cursor = self._tree.cursor(*begun.shares)
        behind = self._begun[self._cursor.depth :]
        self._cursor.advance(as_ids(behind))

    def add_all(self, messages: tuple[Message, ...]) -> None:
        self._named |= self._recognition.named(messages[self._count :])
        while self._count < len(messages):
            role = messages[self._count].role
            run = _same_role(messages, self._count)
            if self._count and self._count + len(run) == len(messages) and role is not Role.ASSISTANT:
                self.checkpoint = self._so_far(messages[: self._count])
            if role is Role.ASSISTANT:
                self._watch.ids.update(ids_of(run), (each.reasoning_mark for each in run))
                self._add_answer(run)
            else:
                for unit in self._script.units(run, self._count):
                    self._add_piece(unit)

    def _so_far(self, messages: tuple[Message, ...]) -> Checkpoint:
        """These messages are in; ids, and messages as sent, are added when the prompt is finished."""
        return Checkpoint(
            sent=messages,
            messages=messages,
            tools=self._tools,
            text=self._script.passed(),
            ids=(),
            length=self._cursor.length,
            ends=tuple(self._ends),
            used=frozenset(self._used),
            named=frozenset(self._named),
            counters=Counter(self.counters),
            watch=self._watch.copy(),
            shares=self._cursor.parent(),
            node=self._path.last,
            news=len(self._recognition.news),
            calls=len(self._tree.prompt_lengths),
        )

    def prompt(self, messages: MessagesDelta) -> Prompt:
        """The finished prompt: it ends where the next answer begins."""
        self._append(self._script.ending())
        parent, cut = self._cursor.parent()
        ids = self._begun + shared_ints(joined(self._parts))
        return Prompt(
            ids=ids,
            delta=PromptDelta(parent=parent, cut=cut, new_ids=ids[cut:]),
            messages=messages,
            images=(),
            counters={name: count for name, count in self.counters.items() if count},
        )

    def _append(self, ids: Ids) -> None:
        self._parts.append(ids)
        self._cursor.advance(ids)

    def _done(self, messages: int) -> None:
        self._count += messages
        self._ends.append(self._cursor.length)

    def _add_piece(self, unit: tuple[Message, ...]) -> None:
        self._append(self._script.piece(unit, self._count))
        self._done(len(unit))

    def _add_answer(self, run: tuple[Message, ...]) -> None:
        """The longest beginning of a run of assistant messages that is one recorded answer, else one message anew."""
        counts = self._script.counts(run, self._count)
        items = [self._recognition.read(run[:count]) for count in counts]
        for find, spell in (
            (self._recognition.whole, self._recognition.spelling),
            (self._recognition.begun, self._recognition.beginning),
        ):
            for place, sent in enumerate(items):
                if turns := find(sent, self._used, self._named):
                    turn = self._chosen(turns)
                    self._watch_choice(turn, sent, len(turns))
                    if frame := self._script.frame(turn, sent, self._count):
                        self._add_turn(turn, frame, spell(turn, sent, frame.reasoning), counts[place])
                    else:
                        self._add_changed(turn, run[: counts[place]])
                    return
                self._watch.contents.add(sent.key)
            self._watch.cuts = True
        self._count_new(items[-1])
        self._add_piece(run[: counts[-1]])

    def _watch_choice(self, turn: Turn, sent: Sent, candidates: int) -> None:
        """What else could have been chosen, were it recorded. Ids that name turns leave no choice."""
        if not self._recognition.names_none(sent):
            return
        watch = self._watch
        watch.latest = max(watch.latest, turn.call.index)
        best = (-len(self._ends), -self._count, 0)
        if sent.calls or sent.message.reasoning or sent.mark or self._rank(self._here(), turn)[:3] != best:
            watch.contents.add(sent.key)
        else:
            watch.single[sent.key] = watch.single.get(sent.key, 0) + (candidates == 1)

    def _add_changed(self, turn: Turn, run: tuple[Message, ...]) -> None:
        """A turn of ours that the template prints otherwise than it is."""
        self._used.add(turn)
        self._watch.lengths.add(self._here().length)
        self.counters["reencoded_turns"] += 1
        self._add_piece(run)

    def _add_turn(self, turn: Turn, frame: Frame, spelling: Spelling, messages: int) -> None:
        self._used.add(turn)
        self.counters["split_tokens"] += spelling.split_tokens
        self.counters["cut_turns"] += spelling.cut
        self._append(frame.opening)
        self._append(spelling.ids)
        closing = self._template.closing_ids
        closed = spelling.ended and spelling.ids[-1] == closing[0]
        self._append(closing[1:] if closed else closing)
        self._done(messages)

    def _chosen(self, turns: Sequence[Turn]) -> Turn:
        self.counters["ambiguous_turns"] += len(turns) > 1
        return turns[0] if len(turns) == 1 else min(turns, key=partial(self._rank, self._here()))

    def _here(self) -> IdCursor:
        """Where an answer would be sampled that stands next."""
        here = self._cursor.fork()
        here.advance(self._script.opening(self._count))
        return here

    def _rank(self, here: IdCursor, turn: Turn) -> tuple[int, int, int, int]:
        """The longest shared beginning first, in units of ids, then in messages; then the earliest call.

        Of answers to the very prompt that stands here, one that was cut comes last: it did not arrive as a whole.
        """
        call = turn.call
        units = bisect_right(self._ends, self._cursor.shared_with(call.call_id))
        messages = self._path.shared_with(call.call_id, self._count)
        elsewhere = not here.is_prompt_of(call.call_id)
        return -units, -messages, 2 * elsewhere + (not elsewhere and call.delivered.state == "prefix"), call.index

    def _count_new(self, sent: Sent) -> None:
        """A message with calls of ours, or where an answer of ours was sampled, was changed; others are foreign."""
        self._watch.lengths.add(self._here().length)
        ours = self._recognition.ours(sent) or self._here().is_a_prompt()
        self.counters["reencoded_turns" if ours else "foreign_turns"] += 1


def _same_role(messages: tuple[Message, ...], start: int) -> tuple[Message, ...]:
    """The messages of one role from a place on."""
    role = messages[start].role
    return tuple(takewhile(lambda message: message.role is role, islice(messages, start, None)))
