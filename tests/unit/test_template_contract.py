"""Templates that keep the contract, and those that break it, by the case in which they do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from openforgerl.errors import AssemblyError, ConfigError
from openforgerl.records import Message, Role, ToolSpec
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import DEFAULT, Template, own_template
from token_world import BASH, FIXTURE, answer, call, result, system, user

CODEC = Codec.load(FIXTURE)
SHIPPED = DEFAULT.read_text()
REASONING = "{%- if message.reasoning_content %}"
RESULT = "{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}"
MERGED = """{%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"""


def changed(old: str, new: str) -> Template:
    assert old in SHIPPED
    return Template(CODEC, SHIPPED.replace(old, new), "changed.jinja")


def test_the_shipped_template_keeps_the_contract() -> None:
    template = Template.load(CODEC)
    assert template.header_ids.tolist() == template.whole_ids([user("x")]).tolist()[-len(template.header_ids) :]
    assert template.codec.token_text(int(template.closing_ids[0])) == "<|im_end|>"
    assert template.keeps_reasoning
    assert template.template_hash == Template.load(CODEC, DEFAULT).template_hash


def test_it_renders_tools_in_the_clients_order_without_escapes() -> None:
    tools = (ToolSpec(name="z", definition='{"name": "z", "b": "<é>\'", "a": {"y": 1.0, "x": []}}'),)
    text = Template.load(CODEC).whole_text([system("Sys."), user("Hi")], tools)
    assert text == (
        "<|im_start|>system\nSys.\n\nTools:\n"
        '{"type": "function", "function": {"name": "z", "b": "<é>\'", "a": {"y": 1.0, "x": []}}}\n'
        'To call a tool, write <tool_call>{"name": "...", "arguments": {...}}</tool_call>.<|im_end|>\n'
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_it_renders_a_whole_turn() -> None:
    turn = answer("I look.", call("a", '{"x":1}'), call("b", "{}"), reasoning="Hm.")
    text = Template.load(CODEC).whole_text([user("Hi"), turn, result("a", "one"), result("b", "two")])
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\nI look.\n"
        '<tool_call>{"name": "bash", "arguments": {"x":1}}</tool_call>\n'
        '<tool_call>{"name": "bash", "arguments": {}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ntwo\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


USER = "{{- '<|im_start|>user\\n' + message.content"
SEPARATOR = "{%- if message.content or not loop.first %}{{- '\\n' }}"
ARGUMENTS = "call.function.arguments if call.function.arguments is string else call.function.arguments | tojson"
OTHERS = "{%- if not (loop.first and tools) %}"
BROKEN = {
    "prints None": ("message.content or ''", "message.content or 'None'", "tools and a system message"),
    "prints no tools": ("{%- for tool in tools %}", "{%- for tool in [] %}", "tools and a system message"),
    "prints no arguments": (ARGUMENTS, "'{}'", "tool arguments"),
    "prints half a text": ("system\\n' + message.content", "system\\n' + message.content[:4]", "a system message"),
    "another generation prompt": (
        "prompt %}{{- '<|im_start|>assistant",
        "prompt %}{{- '<|im_start|>a",
        "an assistant turn",
    ),
    "another separator": (SEPARATOR, "{%- if true %}{{- '\\n\\n' }}", "tools and a system message"),
    "another markup": ('<tool_call>{"name": \' +', '<call>{"name": \' +', "a call"),
    "no end of turn": ("{{- '<|im_end|>\\n' }}\n{%- elif", "{{- '\\n' }}\n{%- elif", "an assistant turn"),
    "refuses users": (USER, "{{- raise_exception('no users') + message.content", "tool arguments"),
}


DEPENDING = {
    "reasoning in the last message only": (REASONING, REASONING.replace(" %}", " and loop.last %}")),
    "the number of messages in each": (USER, USER + " + messages | length | string"),
    "texts of neighbours joined": (USER + " + '<|im_end|>\\n'", "{{- message.content"),
}


@pytest.mark.parametrize("name", DEPENDING)
def test_a_template_that_makes_messages_depend_on_others_is_known_as_such(name: str) -> None:
    assert changed(*DEPENDING[name]).depends
    assert not Template.load(CODEC).depends


def test_developers_are_systems_where_the_template_does_not_know_them() -> None:
    template = changed(OTHERS, OTHERS.replace(" %}", " and message.role == 'system' %}"))
    messages = [system("Sys."), user("Hi"), Message(role=Role.DEVELOPER, text="Be brief.")]
    assert "<|im_start|>system\nBe brief.<|im_end|>" in template.whole_text(messages)


@pytest.mark.parametrize("name", BROKEN)
def test_a_template_that_breaks_the_contract_is_refused_by_its_case(name: str) -> None:
    old, new, case = BROKEN[name]
    with pytest.raises(ConfigError, match=f"changed.jinja breaks the contract in the case '{case}"):
        changed(old, new)


def test_a_template_that_merges_tool_results_is_rendered_by_runs_of_them() -> None:
    template = changed(RESULT, MERGED)
    run = [result("a", "one"), result("b", "two")]
    assert template.units([user("x"), *run]) == [(user("x"),), tuple(run)]
    assert Template.load(CODEC).units(run) == [(run[0],), (run[1],)]


def test_a_template_that_prints_no_reasoning_is_known_as_such() -> None:
    assert not changed(REASONING, "{%- if false %}").keeps_reasoning


def test_a_template_that_prints_arguments_from_an_object_gets_an_object() -> None:
    template = changed(
        ARGUMENTS,
        "call.function.arguments | tojson",
    )
    assert '"arguments": {"x": 1}}' in template.whole_text([user("Hi"), answer("", call("a", '{"x":1}'))])


@pytest.mark.parametrize(("content", "said"), [(None, "none.jinja"), ("{% if %}", "line 1")])
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "none.jinja"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        Template.load(CODEC, path)


def test_a_model_folder_brings_its_own_template_in_one_of_two_files(tmp_path: Path) -> None:
    assert own_template(tmp_path) is None
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text("{}")
    assert own_template(tmp_path) is None
    with pytest.raises(ConfigError, match="chat_template"):
        Template.load(CODEC, settings)
    settings.write_text(json.dumps({"chat_template": SHIPPED}))
    assert own_template(tmp_path) == settings
    assert Template.load(CODEC, settings).template_hash == Template.load(CODEC).template_hash
    (tmp_path / "chat_template.jinja").write_text(SHIPPED)
    assert own_template(tmp_path) == tmp_path / "chat_template.jinja"
    settings.write_text("{")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer_config.json"):
        own_template(tmp_path)


def test_a_template_cannot_leave_its_sandbox() -> None:
    with pytest.raises(ConfigError):
        changed("{{- message.content or '' }}", "{{- message.content.__class__.__mro__ }}")


def test_what_a_template_refuses_is_an_assembly_error() -> None:
    template = changed(
        RESULT, RESULT + "{%- if message.content == 'bad' %}{{- raise_exception('bad result') }}{%- endif %}"
    )
    with pytest.raises(AssemblyError, match="bad result"):
        template.whole_ids([user("Hi"), result("a", "bad")])


@pytest.mark.parametrize("role", list(Role))
def test_every_role_can_stand_first(role: Role) -> None:
    template = Template.load(CODEC)
    message = Message(role=role, text="Hi")
    for tools in ((), (BASH,)):
        whole = template.whole_ids([message, user("x")], tools).tolist()
        pieces = [
            template.piece_ids((message,), first=True, tools=tools),
            template.piece_ids((user("x"),), first=False, tools=tools),
        ]
        assert [*pieces[0], *pieces[1], *template.header_ids] == whole
    first = template.opening_ids(first=True, tools=(BASH,)).tolist()
    assert (
        template.whole_ids([replace(message, role=Role.ASSISTANT), user("x")], (BASH,)).tolist()[: len(first)] == first
    )
