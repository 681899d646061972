"""Chat templates of real models, with their tokenizers: prompts are what a stock server makes, with recorded ids."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from openforgerl.records import Message, Role
from openforgerl.tokens.families import HERMES
from openforgerl.tokens.probes import PROBES, Probe
from real_tokenizers import real_tokenizer
from token_world import TokenWorld, template
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


def stock_fields(message: Message) -> dict[str, object]:
    role = "system" if message.role is Role.DEVELOPER else message.role.value
    fields: dict[str, object] = {"role": role, "content": message.text}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return fields


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.case)
def test_a_foreign_conversation_has_the_stock_ids_of_qwen3(probe: Probe, qwen3: Path) -> None:
    stock = transformers.AutoTokenizer.from_pretrained(str(qwen3))
    stock.chat_template = json.loads(own(qwen3).read_text())["chat_template"]
    world = TokenWorld(folder=qwen3, file=own(qwen3))
    tools = [{"type": "function", "function": json.loads(tool.definition)} for tool in probe.tools] or None
    ids = stock.apply_chat_template(
        [stock_fields(message) for message in probe.messages],
        tools=tools,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert list(world.prompt(probe.messages, tools=probe.tools).ids) == ids
