"""What every family's parsing keeps, for the tokens package and for mutants of it."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from random import Random
from typing import Any

from openforgerl.records import ToolSpec
from token_world import TOKENS, TokenWorld

SCHEMA = {
    "name": "put",
    "parameters": {
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": ["number", "null"]},
            "flag": {"type": "boolean"},
            "list": {"anyOf": [{"type": "array"}, {"type": "null"}]},
            "map": {"type": "object"},
        }
    },
}
PUT = ToolSpec(name="put", definition=json.dumps(SCHEMA))
TEXTS = (
    "a",
    " b ",
    "é🦜",
    "\n",
    "x < y",
    "<b>",
    "{",
    "}",
    ";",
    '"',
    "</tool",
    "</parameter>",
    "12",
    "true",
    "null",
    "\\",
)
VALUES: dict[str, tuple[Any, ...]] = {
    "count": (0, -7, 12345678901234567890),
    "ratio": (0.5, 1, None, -1e30),
    "flag": (True, False),
    "list": ([], [1, "]"], None),
    "map": ({}, {"a": {"b": "}"}}),
}
MARKS = {
    "hermes": ("<tool_call>", "</tool_call>", '{"name": "put", "arguments": {', "}}", "\n"),
    "qwen3_coder": ("<tool_call>", "<function=put>", "<parameter=text>", "</parameter>", "</function>", "</tool_call>"),
    "llama3": ("<|python_tag|>", '{"name": "put", ', '"parameters": {', "}}", ";", "; "),
}


@dataclass(frozen=True)
class Written:
    """An answer that a template would print, and what it says."""

    text: str
    reasoning: str
    shown: str
    calls: list[tuple[str, dict[str, Any]]]


def words(random: Random, most: int = 4) -> str:
    return "".join(random.choices(TEXTS, k=random.randrange(most)))


def written(random: Random, family: str) -> Written:
    """Calls come last; a bare call stands only where no text is before it."""
    reasoning = random.choice(("", "Hm.", "a\n\nb"))
    calls = [("put", arguments(random)) for _ in range(random.randrange(4))]
    begin = random.choice(("Say", '{"name', '{"a": ', "{")) if family == "llama3" else "Say"
    shown = begin + words(random) if family != "llama3" or not calls or random.random() < 0.5 else ""
    thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    return Written(thought + shown + printed(random, calls, family, marked=bool(shown)), reasoning, shown, calls)


def arguments(random: Random) -> dict[str, Any]:
    if random.random() < 0.2:
        return {}
    found: dict[str, Any] = {"text": words(random), "free é": words(random)}
    keys = random.sample(sorted(VALUES), random.randrange(len(VALUES)))
    return {**found, **{key: random.choice(VALUES[key]) for key in keys}}


def printed(random: Random, calls: list[tuple[str, dict[str, Any]]], family: str, *, marked: bool) -> str:
    """As the models' own templates print them, with more white space between calls."""
    if family == "llama3":
        joined = "; ".join(json.dumps({"name": name, "parameters": given}) for name, given in calls)
        return f"<|python_tag|>{joined}" if joined and marked else joined
    if family == "qwen3_coder":
        bodies = [xml(*call) for call in calls]
    else:
        bodies = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls]
    before = ["\n", *(random.choice(("\n", "\n\n", " ", "")) for _ in calls)]
    return "".join(f"{blank}<tool_call>\n{body}\n</tool_call>" for blank, body in zip(before, bodies, strict=False))


def xml(name: str, given: dict[str, Any]) -> str:
    values = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in given.items()]
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<function={name}>\n{body}</function>"


def broken(random: Random, family: str) -> str:
    """Any mix of the family's marks, of good calls and of text."""
    good = written(random, family).text
    pieces = (*MARKS[family], *TEXTS, "<think>\n", "\n</think>\n\n", good)
    return "".join(random.choices(pieces, k=random.randrange(9)))


def assert_laws(random: Random, family: str, modules: str = TOKENS) -> None:
    """Of one written answer and of one broken one."""
    world = TokenWorld(modules)
    said = written(random, family)
    parts = parts_of(said.text, family, modules)
    assert ("".join(part.text for part in parts if part.kind == "reasoning")) == said.reasoning
    assert ("".join(part.text for part in parts if part.kind == "text")) == said.shown
    read = [(part.name, json.loads(part.arguments)) for part in parts if part.kind == "tool_call"]
    assert json.dumps(read) == json.dumps(said.calls)
    for text in (said.text, said.text + "\n\n", broken(random, family)):
        assert_same_however_cut(random, text, family, modules)
        assert_spans(random, text, family, world)


def parts_of(text: str, family: str, modules: str) -> tuple[Any, ...]:
    markup = importlib.import_module(f"{modules}.markup")
    found: tuple[Any, ...] = markup.scan(text, tools=(PUT,), family=member(family, modules))
    return found


def member(family: str, modules: str) -> Any:
    families = importlib.import_module(f"{modules}.families").FAMILIES
    return next(each for each in families if each.name == family)


def assert_same_however_cut(random: Random, text: str, family: str, modules: str) -> None:
    """And the parts are the text, in order, each character once; what is shown of a text is the text."""
    markup = importlib.import_module(f"{modules}.markup")
    whole = parts_of(text, family, modules)
    for share in (1.0, random.random()):
        cut = markup.Scanner(tools=(PUT,), family=member(family, modules))
        parts, start = [], 0
        for stop in [place for place in range(1, len(text)) if random.random() < share] + [len(text)]:
            parts += cut.feed(text[start:stop])
            assert [part.stop for part in parts[-1:]] in ([], [cut.resolved])
            start = stop
        assert markup.merged(parts + cut.finish()) == whole
    place = 0
    for part in whole:
        assert part.start == place < part.stop
        place = part.stop
        if part.kind == "text":
            assert part.text in (text[part.start : part.stop], "")
            assert part.text or not text[part.start : part.stop].strip()
    assert place == len(text)


def assert_spans(random: Random, text: str, family: str, world: TokenWorld) -> None:
    """Every sampled id before the end of the turn is in one span; in two only where a part ends inside it."""
    parsing = importlib.import_module(f"{world.modules}.parsing")
    ids = random.choice((world.odd_ids(text, random), world.codec.encode(text)))
    parser = parsing.AnswerParser(
        world.codec, tools=(PUT,), stop=(), mint=world.mint, family=member(family, world.modules)
    )
    parser.feed((*ids, world.end))
    place, whole = 0, True
    for span in parser.finish(None).spans:
        assert span.start == place if whole or span.exact else span.start == place - 1
        place, whole = span.stop, span.exact
    assert place == len(ids)
