"""Chat templates of real models, with their tokenizers: prompts are what a stock server makes, with recorded ids."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from openforgerl.errors import AssemblyError
from openforgerl.records import Message, Role
from openforgerl.tokens.families import HERMES, LLAMA3
from openforgerl.tokens.probes import PROBES, Probe
from real_tokenizers import real_tokenizer
from token_world import TokenWorld, result, template, user
from whole_laws import assert_laws

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def qwen3() -> Path:
    return real_tokenizer("qwen3")


def own(folder: Path) -> Path:
    return folder / "tokenizer_config.json"


def test_qwen3_drops_reasoning_behind_a_user_message_and_writes_calls_as_hermes(qwen3: Path) -> None:
    chat = template(folder=qwen3, file=own(qwen3))
    assert (chat.depends, chat.family.name) == (True, HERMES.name)


def test_prompts_of_qwen3_are_its_rendering_with_the_recorded_ids(qwen3: Path) -> None:
    for seed in range(12):
        assert_laws(Random(seed), folder=qwen3, file=own(qwen3))


def stock_fields(message: Message, *, developer: str, as_text: bool) -> dict[str, object]:
    role = developer if message.role is Role.DEVELOPER else message.role.value
    fields: dict[str, object] = {"role": role, "content": message.text}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        functions = [
            {"name": call.name, "arguments": call.arguments if as_text else json.loads(call.arguments)}
            for call in message.tool_calls
        ]
        fields["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return fields


def stock_ids(folder: Path, probe: Probe, **how: object) -> list[int]:
    stock = transformers.AutoTokenizer.from_pretrained(str(folder))
    stock.chat_template = json.loads(own(folder).read_text())["chat_template"]
    found: list[int] = stock.apply_chat_template(
        [stock_fields(message, **how) for message in probe.messages],
        tools=[{"type": "function", "function": json.loads(tool.definition)} for tool in probe.tools] or None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        date_string="26 Jul 2024",
    )
    return found


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.case)
def test_a_foreign_conversation_has_the_stock_ids_of_qwen3(probe: Probe, qwen3: Path) -> None:
    world = TokenWorld(folder=qwen3, file=own(qwen3))
    ids = stock_ids(qwen3, probe, developer="system", as_text=True)
    assert list(world.prompt(probe.messages, tools=probe.tools).ids) == ids


@pytest.fixture(scope="module")
def llama() -> Path:
    return real_tokenizer("llama3_2")


def test_llama_says_what_it_refuses_and_drops(llama: Path) -> None:
    chat = template(folder=llama, file=own(llama))
    assert (chat.depends, chat.family.name) == (True, LLAMA3.name)
    assert chat.refuses == ("parallel calls and several tool results",)
    assert chat.drops_text_of_calls


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.case)
def test_a_foreign_conversation_has_the_stock_ids_of_llama(probe: Probe, llama: Path) -> None:
    world = TokenWorld(folder=llama, file=own(llama))
    if probe.case in world.template.refuses:
        with pytest.raises(AssemblyError, match="single tool-calls"):
            world.prompt(probe.messages, tools=probe.tools)
        return
    prompt = world.prompt(probe.messages, tools=probe.tools)
    assert list(prompt.ids) == stock_ids(llama, probe, developer="developer", as_text=False)
    said = [message for message in probe.messages if message.tool_calls and message.text]
    assert prompt.counters.get("dropped_texts", 0) == len(said)


def test_a_call_of_llama_comes_back_as_its_ids(llama: Path) -> None:
    world = TokenWorld(folder=llama, file=own(llama))
    said = world.ask([user("List")], '{"name": "bash",  "parameters": {"command":"ls"}}')
    prompt = world.prompt([user("List"), said, result("a")])
    whole = world.prompts[0] + world.calls[0].sampled_ids
    assert (said.tool_calls[0].arguments, prompt.ids[: len(whole)]) == ('{"command":"ls"}', whole)
