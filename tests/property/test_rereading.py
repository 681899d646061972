"""A memory of bodies changes nothing of what is read: not the value, not the error, whatever came before."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openforgerl.dialects.chat_request import read_request
from openforgerl.dialects.fields import Fields
from openforgerl.dialects.jsontext import Kept, read_json
from openforgerl.dialects.rereading import BODIES_MOST, JsonMemory
from openforgerl.errors import DialectError

TEXTS = ("", "a", "1", "é", "\U0001f600", "\\", '"', "]", "},", "x" * 70, "\u2028", "\ud800", "null")
NUMBERS = ("0", "-0", "1.0", "1e5", "12345678901234567890", "3")


def outcome(read: Any, raw: bytes) -> tuple[str, object]:
    try:
        return "value", read(raw)
    except (DialectError, RecursionError) as error:
        return "error", str(error)


def value(random: Random, depth: int = 0) -> str:
    """JSON text, in the spelling of some client."""
    kind = random.randrange(4 if depth > 2 else 6)
    blank = random.choice(("", "", " ", "\n "))
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return random.choice(("true", "false", "null"))
    if kind in (2, 3):
        text = random.choice(TEXTS)
        return json.dumps(text, ensure_ascii=text == "\ud800" or random.random() < 0.5)
    items = [value(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 4:
        return f"[{blank}{f',{blank}'.join(items)}{blank}]"
    return "{" + blank + ",".join(f'"{random.choice("abc")}"{blank}:{item}' for item in items) + "}"


def message(random: Random) -> str:
    return value(random) if random.random() < 0.1 else f'{{"role":"user","content":{value(random)}}}'


def body(random: Random, messages: list[str], tools: str) -> bytes:
    entries = ['"model":"m"', f'"messages":[{",".join(messages)}]', f'"tools":{tools}', f'"x":{value(random)}']
    if random.random() < 0.1:
        random.shuffle(entries)
    text = "{" + random.choice((",", ", ")).join(entries) + "}" + random.choice(("", "", "\n"))
    raw = bytearray(text.encode())
    if random.random() < 0.15:
        raw[random.randrange(len(raw))] = random.choice(b'{}[],:"0\x00\xff')
    return bytes(raw[: random.randrange(len(raw))]) if random.random() < 0.05 else bytes(raw)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_body_reads_the_same_whatever_was_read_before(random: Random) -> None:
    memory = JsonMemory()
    talks = [[message(random) for _ in range(random.randrange(3))] for _ in range(2)]
    tools = value(random)
    for _ in range(12):
        talk = random.choice(talks)
        talk += [message(random) for _ in range(random.randrange(3))]
        if talk and random.random() < 0.3:
            talk[random.randrange(len(talk))] = message(random)
        if random.random() < 0.1:
            del talk[random.randrange(len(talk) + 1) :]
        raw = body(random, talk, tools)
        assert outcome(memory.read, raw) == outcome(read_json, raw)
        assert memory.fresh(raw) <= len(raw)


def test_what_is_unchanged_is_the_same_object_and_a_changed_byte_of_history_is_seen() -> None:
    memory = JsonMemory()
    first = memory.read(b'{"messages":[{"content":"one"},{"content":"two"}],"tools":[{"name":"f"}]}')
    second = memory.read(b'{"messages":[{"content":"one"},{"content":"twO"},{"content":"3"}],"tools":[{"name":"f"}]}')
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert second["messages"] == [{"content": "one"}, {"content": "twO"}, {"content": "3"}]
    assert second["messages"][0] is first["messages"][0]
    assert second["tools"] is first["tools"]


def test_an_earlier_body_that_a_later_one_continues_is_let_go_and_others_are_few() -> None:
    memory = JsonMemory()
    messages = ['{"content":"start"}']
    for number in range(40):
        messages.append(f'{{"content":"{number}"}}')
        raw = f'{{"messages":[{",".join(messages)}]}}'.encode()
        memory.read(raw)
        assert memory.size == len(raw)
    for number in range(3 * BODIES_MOST):
        memory.read(f'{{"messages":[{{"content":"other {number}"}}]}}'.encode())
    assert memory.size < BODIES_MOST * 50
    memory.forget()
    assert memory.size == 0


def test_what_was_made_of_an_object_is_kept_with_it_for_the_one_that_made_it() -> None:
    item = Kept({"n": "1"})
    fields = Fields({"items": [item, {"n": "2"}]})
    seen: list[str] = []

    def length(each: Fields) -> int:
        seen.append(each.path)
        return len(each.values)

    def names(each: Fields) -> list[str]:
        return list(each.values)

    assert fields.each("items", length) == fields.each("items", length) == [1, 1]
    assert seen == ["items[0]", "items[1]", "items[1]"]
    assert fields.each("items", names) == [["n"], ["n"]]


def test_an_object_that_is_refused_is_refused_again_where_it_then_stands() -> None:
    memory = JsonMemory()
    for before in ("", '{"role":"user","content":"more"},'):
        raw = f'{{"messages":[{before}{{"role":"user","content":5}}]}}'.encode()
        place = "messages[1]" if before else "messages[0]"
        for _ in range(2):
            with pytest.raises(DialectError) as refused:
                read_request(raw, memory)
            assert refused.value.field == f"{place}.content"


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_request_is_the_same_with_and_without_a_memory(random: Random) -> None:
    memory, messages = JsonMemory(), []
    tool = {"type": "function", "function": {"name": "f", "parameters": {"minimum": 1.0}, "strict": True}}
    for number in range(8):
        extra = {"cache_control": 1} if random.random() < 0.3 else {}
        messages.append({"role": random.choice(("user", "assistant")), "content": f"text {number}", **extra})
        if random.random() < 0.2:
            messages[random.randrange(len(messages))]["content"] += random.choice(TEXTS[:6])
        raw = json.dumps({"messages": messages, "tools": [tool, {"type": "web_search"}]}).encode()
        assert read_request(raw, memory) == read_request(raw)
