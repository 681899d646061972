"""What Hugging Face, and so a stock server, makes of our template: the same text, the same ids."""

from __future__ import annotations

import json

import pytest

from openforgerl.records import Message
from openforgerl.tokens.probes import PROBES, Probe
from openforgerl.tokens.template import DEFAULT
from token_world import FIXTURE, template

transformers = pytest.importorskip("transformers")


def fields(message: Message) -> dict[str, object]:
    """As a server that keeps arguments as text hands a message to the template."""
    found: dict[str, object] = {"role": message.role.value, "content": message.text}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return found


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.case)
def test_the_stock_rendering_is_ours(probe: Probe) -> None:
    stock = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FIXTURE / "tokenizer.json"))
    stock.chat_template = DEFAULT.read_text()
    messages = [fields(message) for message in probe.messages]
    tools = [{"type": "function", "function": json.loads(tool.definition)} for tool in probe.tools] or None
    asked = {"tools": tools, "add_generation_prompt": True}
    assert stock.apply_chat_template(messages, tokenize=False, **asked) == template().whole_text(
        probe.messages, probe.tools
    )
    ids = stock.apply_chat_template(messages, tokenize=True, return_dict=False, **asked)
    assert ids == template().whole_ids(probe.messages, probe.tools).tolist()
