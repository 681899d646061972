"""Laws 1 and 2 where a template makes messages depend on later ones, for the tokens package and for mutants of it.

The prompt is the template's own rendering of the whole conversation, but for answers of the session: of those, what the
template prints is spelled with the ids that were sampled.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from openforgerl.records import Message, RecordedCall, ToolCall
from token_world import BASH, FIXTURE, TOKENS, TokenWorld, answer, result, user

LATE = FIXTURE.parent / "templates" / "late_reasoning.jinja"
WORDS = ("Hello", " world", "\n", "é", "🦜", " file", "<|im_end|>", "<|im_start|>assistant\n", "<tool", "\t<b>")
HEADER, END = "<|im_start|>assistant\n", "<|im_end|>"


class Talk:
    """One conversation that grows; its harness gives the reasoning back, or not, and splits some answers."""

    def __init__(self, random: Random, world: TokenWorld, *, keep: bool) -> None:
        self.random, self.world, self.keep = random, world, keep
        self.messages: list[Message] = [user("Begin")]
        self.turns: list[RecordedCall | None] = []
        """Of each assistant turn: the call that sampled it; None where it is foreign."""
        self.joined: list[Message] = [user("Begin")]
        """The messages, those that are one answer as one."""

    def step(self) -> None:
        """One answer, sampled or foreign, and what the harness says to it."""
        number, random = len(self.messages), self.random
        said = answer(
            f"{number}." + self.text() + ".", *self.calls(number), reasoning=random.choice(("", f"{number} hm"))
        )
        if random.random() < 0.25:
            self.turns.append(None)
            self.messages.append(said)
            self.joined.append(said)
        else:
            self.sample(said)
        if said.tool_calls and random.random() < 0.8:
            self.add(*(result(each.id, self.text()) for each in said.tool_calls))
        if not said.tool_calls or random.random() < 0.4:
            self.add(user(self.text()))

    def add(self, *messages: Message) -> None:
        self.messages += messages
        self.joined += messages

    def sample(self, said: Message) -> None:
        world, random = self.world, self.random
        end = random.choice(((world.end,), (world.end,), ()))
        parsed = world.ask(self.messages, (*world.odd_ids(printed(said), random), *end))
        assert (parsed.text, parsed.reasoning) == (said.text, said.reasoning)
        back = parsed if random.random() < 0.7 else replace(parsed, reasoning="")
        self.turns.append(world.calls[-1])
        self.joined.append(back)
        self.messages += split(back) if random.random() < 0.3 else [back]

    def calls(self, number: int) -> list[ToolCall]:
        count = self.random.choice((0, 1, 2))
        given = [json.dumps({"command": f"{number} {place}{self.text()}"}) for place in range(count)]
        return [ToolCall(id=f"x{number}y{place}", name="bash", arguments=each) for place, each in enumerate(given)]

    def text(self) -> str:
        return "".join(self.random.choices(WORDS, k=self.random.randrange(4)))


def printed(said: Message) -> str:
    """As the template prints it behind the last user message."""
    thought = f"<think>\n{said.reasoning}\n</think>\n\n" if said.reasoning else ""
    calls = [
        f'<tool_call>\n{{"name": "bash", "arguments": {each.arguments}}}\n</tool_call>' for each in said.tool_calls
    ]
    return thought + "\n".join([said.text, *calls])


def split(said: Message) -> list[Message]:
    items = [answer(reasoning=said.reasoning)] if said.reasoning else []
    return [*items, answer(said.text), *(answer("", each) for each in said.tool_calls)]


def assert_laws(
    random: Random, modules: str = TOKENS, folder: Path = FIXTURE, file: Path = LATE, steps: int = 7
) -> None:
    keep = random.random() < 0.25
    world = TokenWorld(modules, {"history_reasoning": "keep"} if keep else {}, folder=folder, file=file)
    talk = Talk(random, world, keep=keep)
    for _ in range(7):
        talk.step()
        prompt = world.prompt(talk.messages)
        text = world.template.whole(talk.joined, (BASH,))
        assert prompt.ids == tuple(expected(talk, text))
        assert prompt.counters.get("foreign_turns", 0) == talk.turns.count(None)
        assert prompt.counters["whole_renderings"] == 1
        assert "reencoded_turns" not in prompt.counters
        if not keep:
            assert world.codec.decode(prompt.ids) == text.plain()
        assert_fresh(world)


def assert_fresh(world: TokenWorld) -> None:
    """What is kept between calls changes nothing."""
    fresh = world.fresh()
    for call in world.calls:
        fresh.remember(call)
    for request in world.requests[-2:]:
        assert fresh.assemble(request) == world.assembler.assemble(request)


def expected(talk: Talk, text: Any) -> Iterator[int]:
    """The stock encoding of what stands between the recorded bodies, and these as sampled."""
    rest, between = text.text, ""
    for call in talk.turns:
        opening, _, rest = rest.partition(HEADER)
        body, _, rest = rest.partition(END)
        between += opening + HEADER
        if call is None:
            between += body + END
            continue
        ids = [each for each in call.sampled_ids if each != talk.world.end]
        sampled = talk.world.codec.decode(ids)
        thought = sampled.partition("</think>\n\n")
        reasoned = bool(thought[1])
        shown = body.startswith(f"<think>\n{call.answer.reasoning}\n</think>") and reasoned
        if body.startswith("<think>\n\n</think>\n\n") and not (reasoned and talk.keep):
            between += "<think>\n\n</think>\n\n"
        yield from stock(talk.world, between, text.sentinel)
        yield from ids if shown or talk.keep or not reasoned else suffix(talk.world, ids, thought[2])
        between = END
    yield from stock(talk.world, between + rest, text.sentinel)


def stock(world: TokenWorld, text: str, sentinel: str) -> tuple[int, ...]:
    """Ids of the template's text, its control tokens as such; `sentinel` breaks those of messages."""
    rendering = importlib.import_module(f"{world.modules}.rendering")
    return tuple(rendering.encode_marked(world.codec, rendering.Marked(text=text, sentinel=sentinel)))


def suffix(world: TokenWorld, ids: list[int], text: str) -> list[int]:
    """The last ids that spell a text; it begins at the end of one."""
    for place in range(len(ids) + 1):
        if world.codec.decode(ids[place:]) == text:
            return ids[place:]
    raise AssertionError(f"no id ends before {text!r}")
