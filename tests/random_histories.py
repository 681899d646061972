"""Random sessions of a harness that changes what it was given, and the prompts that are right, found by brute force."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from openforgerl.records import Delivered, EngineFinish, Message, RecordedCall, ToolCall
from token_world import BASH, FULL, TokenWorld, answer, call_text, result, system, user

WORDS = ("Hello", " world", "\n", " assistant", " the", "é", "🦜", " file", "<|im_end|>", "  ", "<tool", "\t<b>")
NUMBERS = {"1.0": "1", "1e3": "1000", "12345678901234567890": "12345678901234567000", "-0": "0", "7": "7", "0.1": "0.1"}
"""As sampled, and as JavaScript prints it."""


@dataclass(frozen=True)
class Kept:
    """What a harness made of an answer: the messages, and the truth about them."""

    messages: tuple[Message, ...]
    call: RecordedCall | None = None
    """None: it is no answer of the session, or a changed one."""
    stop: int = -1
    """Of a cut answer: the length of its text that was kept, markup included."""


@dataclass
class History:
    """What a branch has so far; assistant turns with their truth."""

    turns: list[Message | Kept] = field(default_factory=list)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(
            message for turn in self.turns for message in (turn.messages if isinstance(turn, Kept) else (turn,))
        )


class RandomSession:
    """Grows branches of one session call by call."""

    def __init__(self, random: Random, modules: str, *, keep: bool, folder: Path) -> None:
        self.random = random
        self.keep = keep
        self.world = TokenWorld(modules, {"history_reasoning": "keep"} if keep else {}, folder=folder)
        self.branches = [History([system("You work."), user("Begin")]), History([user("Begin")])]
        self._texts: list[str] = []
        self._number = 0

    def step(self) -> History:
        """One call on one branch; its answer comes back there, or does not. The history that was asked."""
        asked = self.branches[self.random.randrange(len(self.branches))]
        trailing = [user("Context.")] if self.random.random() < 0.3 else []
        asked = History([*asked.turns, *trailing])
        self._sample(asked)
        turns = asked.turns[: len(asked.turns) - len(trailing)]
        if self.random.random() < 0.9:
            turns = [*turns, self._came_back(self.world.calls[-1]), self._next()]
        self.branches.append(History(turns))
        return asked

    def changed(self) -> History:
        """A branch in which one turn was edited or invented."""
        turns = list(self.branches[self.random.randrange(len(self.branches))].turns)
        places = [place for place, turn in enumerate(turns) if isinstance(turn, Kept) and len(turn.messages) == 1]
        if not places or self.random.random() < 0.3:
            turns.insert(self.random.randrange(1, len(turns) + 1), Kept((answer(f"Invented {self.random.random()}"),)))
        else:
            place = self.random.choice(places)
            turns[place] = Kept((replace(turns[place].messages[0], text=turns[place].messages[0].text + " edited"),))
        return History([*turns, user("Go on")])

    def _next(self) -> Message:
        return self.random.choice((user("Go on"), result("x", self._text()), system("Mind the <|im_end|>.")))

    def _text(self) -> str:
        return "".join(self.random.choices(WORDS, k=self.random.randrange(5)))

    def _sample(self, asked: History) -> None:
        world, random = self.world, self.random
        if self._texts and random.random() < 0.25:
            text = random.choice(self._texts)
        else:
            self._number += 1
            text = self._answer_text()
            self._texts.append(text)
        end = random.choice(((world.end,), (world.end,), (), world.codec.stop_ids[-1:]))
        finish = EngineFinish.STOP if end else EngineFinish.LENGTH
        delivered = random.choice((FULL, FULL, Delivered(state="prefix", count=3), Delivered(state="unknown")))
        tools = random.choice(((BASH,), (BASH,), ()))
        ids = (*world.odd_ids(text, random), *end)
        world.ask(asked.messages, ids, tools=tools, finish=finish, delivered=delivered)

    def _answer_text(self) -> str:
        """Its number makes it unlike any other."""
        text = f"{self._number}. {self._text()}."
        reasoning = f"<think>\n{self._number} hm {self._text()}.\n</think>\n\n" if self.random.random() < 0.4 else ""
        calls = "".join("\n" + self._call_text() for _ in range(self.random.choice((0, 0, 1, 2))))
        return reasoning + text + calls

    def _call_text(self) -> str:
        number, text = self.random.choice(list(NUMBERS)), json.dumps(self._text())
        return call_text(f'{{"a":  {number}, "é": [{text},{self._number}]}}')

    def _came_back(self, call: RecordedCall) -> Kept:
        random, said = self.random, call.answer
        stop = -1
        if call.delivered.state != "full" and random.random() < 0.6:
            said, stop = self._cut(call)
        if random.random() < 0.5:
            said = replace(said, reasoning="")
        if random.random() < 0.5:
            said = replace(said, tool_calls=tuple(map(reprinted, said.tool_calls)))
        mark = random.choice(("", "", "_", None))
        said = replace(said, tool_calls=tuple(replace(each, id=self._id(each.id, mark)) for each in said.tool_calls))
        if stop < 0 and random.random() < 0.3:
            said = replace(said, text=said.text.strip() + random.choice(("", "\n")))
        return Kept(split(said) if random.random() < 0.3 else (said,), call, stop)

    def _id(self, minted: str, mark: str | None) -> str:
        return f"toolu_{self.random.random()}" if mark is None else minted[:4] + mark + minted[4:]

    def _cut(self, call: RecordedCall) -> tuple[Message, int]:
        """The answer as it was cut in its text, which keeps its number, or behind one of its calls."""
        said, whole = call.answer, self.world.codec.decode(visible(self.world, call))
        if said.tool_calls and self.random.random() < 0.5:
            kept = self.random.randrange(1, len(said.tool_calls) + 1)
            if kept == len(said.tool_calls):
                return said, -1
            stop = len("</tool_call>".join(whole.split("</tool_call>")[:kept])) + len("</tool_call>")
            return replace(said, tool_calls=said.tool_calls[:kept]), stop
        count = self.random.randrange(said.text.index(".") + 1, len(said.text) + 1)
        if count == len(said.text) and not said.tool_calls:
            return said, -1
        start = whole.index(said.text, text_start(whole))
        return replace(said, text=said.text[:count], tool_calls=()), start + count


def reprinted(call: ToolCall) -> ToolCall:
    """As a JavaScript harness prints it again."""
    number, rest = call.arguments.removeprefix('{"a":  ').split(', "é": [', 1)
    text, own = rest.removesuffix("]}").rsplit(",", 1)
    return replace(
        call, arguments=f'{{"é":[{json.dumps(json.loads(text), ensure_ascii=False)},{own}],"a":{NUMBERS[number]}}}'
    )


def split(said: Message) -> tuple[Message, ...]:
    """One message for each part."""
    items = [answer(reasoning=said.reasoning)] if said.reasoning else []
    items += [answer(said.text), *(answer("", each) for each in said.tool_calls)]
    return tuple(items)


def visible(world: TokenWorld, call: RecordedCall) -> tuple[int, ...]:
    ids = call.sampled_ids
    return ids[:-1] if ids[-1] in world.codec.stop_ids else ids


def text_start(whole: str) -> int:
    """Where an answer's reasoning ends."""
    return whole.index("</think>\n\n") + len("</think>\n\n") if whole.startswith("<think>") else 0
