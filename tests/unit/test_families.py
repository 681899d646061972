"""The families' answers: what is a call, what is text, and which types arguments have."""

from __future__ import annotations

import json

import pytest

from family_laws import PUT
from openforgerl.records import EngineFinish, Finish, TextDelta
from openforgerl.tokens.families import FAMILIES, HERMES, LLAMA3, QWEN3_CODER, Family
from openforgerl.tokens.parsing import AnswerParser, ParsedAnswer
from token_world import TokenWorld

WORLD = TokenWorld()
BARE = '{"name": "put", "parameters": {"a": 1.0}}'


def parsed(text: str, family: Family, finish: EngineFinish = EngineFinish.STOP) -> ParsedAnswer:
    one = AnswerParser(WORLD.codec, tools=(PUT,), stop=(), mint=WORLD.mint, family=family)
    one.feed((*WORLD.odd_ids(text), WORLD.end))
    return one.finish(finish)


def seen(answer: ParsedAnswer) -> tuple[str, list[tuple[str, str]]]:
    return answer.answer.text, [(call.name, call.arguments) for call in answer.answer.tool_calls]


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        (BARE, "", [("put", '{"a": 1.0}')]),
        ("\n" + BARE + "\n", "", [("put", '{"a": 1.0}')]),
        ('{"type": "function", "name": "put", "parameters": {}}', "", [("put", "{}")]),
        ('{"name": "put", "arguments": {}}', "", [("put", "{}")]),
        (BARE + "; " + BARE + ";" + BARE, "", [("put", '{"a": 1.0}')] * 3),
        ("<|python_tag|>" + BARE, "", [("put", '{"a": 1.0}')]),
        ("I look. <|python_tag|>" + BARE + "; " + BARE, "I look. ", [("put", '{"a": 1.0}')] * 2),
        ("<think>Hm.</think>" + BARE, "", [("put", '{"a": 1.0}')]),
        (BARE + " and more", " and more", [("put", '{"a": 1.0}')]),
        (BARE + "; that was it", "; that was it", [("put", '{"a": 1.0}')]),
        ("I look. " + BARE, "I look. " + BARE, []),
        ('{"a": 1}', '{"a": 1}', []),
        ('{"name": "put"}', '{"name": "put"}', []),
        (
            '{"name": "put", "parameters": {}, "arguments": {}}',
            '{"name": "put", "parameters": {}, "arguments": {}}',
            [],
        ),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
        (";" + BARE, ";" + BARE, []),
    ],
)
def test_llama_calls_begin_an_answer_or_stand_behind_its_tag(
    text: str, shown: str, calls: list[tuple[str, str]]
) -> None:
    assert seen(parsed(text, LLAMA3)) == (shown, calls)


def test_an_object_that_can_be_no_call_is_not_held_back() -> None:
    one = AnswerParser(WORLD.codec, tools=(PUT,), stop=(), mint=WORLD.mint, family=LLAMA3)
    assert one.feed(WORLD.odd_ids("{")) == []
    assert [event for event in one.feed(WORLD.odd_ids(' "answer": '))] == [TextDelta(text='{ "answer": ')]


def xml(*parameters: tuple[str, str], name: str = "put") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("text", "12", '"12"'),
        ("text", "null", '"null"'),
        ("text", '{"a": 1}', '"{\\"a\\": 1}"'),
        ("text", "\n a\n\n", '"\\n a\\n\\n"'),
        ("text", "</parameter>x</function></tool_call>", '"</parameter>x</function></tool_call>"'),
        ("count", "012", '"012"'),
        ("count", "1.0", "1.0"),
        ("count", "1.5", '"1.5"'),
        ("count", " 7 ", "7"),
        ("ratio", "1e3", "1e3"),
        ("ratio", "1e999", "1e999"),
        ("ratio", "None", "null"),
        ("ratio", "NaN", '"NaN"'),
        ("flag", "True", "true"),
        ("flag", "yes", '"yes"'),
        ("list", "null", "null"),
        ("list", '["</tool_call>"]', '["</tool_call>"]'),
        ("map", '{"b":  1}', '{"b":  1}'),
        ("map", "[]", '"[]"'),
        ("unknown", "1", '"1"'),
    ],
)
def test_an_argument_has_the_type_of_the_tools_schema_where_it_reads_as_one(key: str, value: str, read: str) -> None:
    assert seen(parsed(xml((key, value)), QWEN3_CODER)) == ("", [("put", f'{{"{key}": {read}}}')])


@pytest.mark.parametrize("definition", ["{}", "[", '{"parameters": 7}', '{"parameters": {"properties": {"count": 7}}}'])
def test_a_tool_whose_schema_says_nothing_gets_strings(definition: str) -> None:
    tools = (type(PUT)(name="put", definition=definition),)
    one = AnswerParser(WORLD.codec, tools=tools, stop=(), mint=WORLD.mint, family=QWEN3_CODER)
    one.feed(WORLD.odd_ids(xml(("count", "1"))))
    assert one.finish(None).answer.tool_calls[0].arguments == '{"count": "1"}'


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=put>\n<parameter=text>\nls",
        "<tool_call>\n<function=put>\n<parameter=text>\nls</function>\n</tool_call>",
        "<tool_call><function=put></function>",
        "<tool_call><function=put>text</function></tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><parameter=a>1</parameter></tool_call>",
        '<tool_call>{"name": "put", "arguments": {}}</tool_call>',
        "<function=put></function>",
    ],
)
def test_elements_that_do_not_parse_are_the_text_that_they_are(text: str) -> None:
    assert seen(parsed(text, QWEN3_CODER)) == (text, [])


def test_a_broken_element_does_not_hide_the_next_call() -> None:
    text = "<tool_call><function=put>oops" + xml(("count", "1"))
    assert seen(parsed(text, QWEN3_CODER)) == ("<tool_call><function=put>oops", [("put", '{"count": 1}')])


def test_openings_only_are_read_in_reasonable_time() -> None:
    text = "<tool_call><function=put><parameter=a>" * 2000
    assert seen(parsed(text, QWEN3_CODER)) == (text, [])
    text = BARE[:-1] * 2000
    assert seen(parsed(text, LLAMA3)) == (text, [])


CUT = {
    HERMES.name: '<tool_call>{"name": "put", "arguments": {"a": 1',
    QWEN3_CODER.name: xml(("count", "1"))[:-3],
    LLAMA3.name: BARE[:-1],
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_call_that_the_length_cut_is_text_and_the_finish_says_so(family: Family) -> None:
    answer = parsed(CUT[family.name], family, EngineFinish.LENGTH)
    assert (*seen(answer), answer.finish) == (CUT[family.name], [], Finish.LENGTH)


def test_arguments_of_every_family_are_json() -> None:
    for family, text in ((QWEN3_CODER, xml(('a"b', 'c"d'))), (LLAMA3, BARE)):
        assert isinstance(json.loads(seen(parsed(text, family))[1][0][1]), dict)
