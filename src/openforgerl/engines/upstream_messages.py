"""Anthropic's Messages as a text API: a conversation out, the events of an answer back.

Reasoning of earlier turns is left out: only who thought it can sign it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from openforgerl.engines.limits import refusal
from openforgerl.engines.text_wire import Json, Said, TextAsked, ToolCalls, item
from openforgerl.errors import EngineError
from openforgerl.records import CallEvent, EngineFinish, Message, ReasoningDelta, Role, TextDelta, ToolSpec

MAX_TOKENS = 8192
"""Where nobody said a number; this API wants one."""
_FINISHES = {
    "end_turn": EngineFinish.STOP,
    "stop_sequence": EngineFinish.STOP,
    "tool_use": EngineFinish.STOP,
    "max_tokens": EngineFinish.LENGTH,
}
_SYSTEM = (Role.SYSTEM, Role.DEVELOPER)


class MessagesWire:
    path = "/v1/messages"
    enforces_schema = False

    def body(self, asked: TextAsked) -> bytes:
        used, request = asked.sampling, asked.conversation
        system = "\n\n".join(each.text for each in request.messages if each.role in _SYSTEM)
        body: dict[str, object] = {
            "model": asked.model,
            "system": system or None,
            "messages": _turns([each for each in request.messages if each.role not in _SYSTEM]),
            "stream": True,
            "max_tokens": asked.max_tokens or MAX_TOKENS,
            "temperature": used.temperature,
            "top_p": used.top_p,
            "top_k": used.top_k,
            "stop_sequences": list(used.stop) or None,
        }
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
            body["tool_choice"] = _choice(request.tool_choice)
        return orjson.dumps({name: value for name, value in body.items() if value is not None})

    def reader(self) -> MessagesReader:
        return MessagesReader()


class MessagesReader:
    """One stream."""

    def __init__(self) -> None:
        self._calls = ToolCalls()

    def read(self, data: bytes) -> Said:
        body = item(data)
        match item(body, "type"):
            case "content_block_start":
                return Said(events=tuple(self._block(item(body, "index"), item(body, "content_block"))))
            case "content_block_delta":
                return Said(events=tuple(self._delta(item(body, "index"), item(body, "delta"))))
            case "message_delta":
                return self._end(item(item(body, "delta"), "stop_reason"))
        return Said()

    def _block(self, index: object, block: object) -> Iterator[CallEvent]:
        if item(block, "type") == "tool_use" and isinstance(index, int):
            yield from self._calls.take(index, item(block, "id"), item(block, "name"), None)

    def _delta(self, index: object, delta: object) -> Iterator[CallEvent]:
        text, thought, arguments = (item(delta, name) for name in ("text", "thinking", "partial_json"))
        if isinstance(text, str) and text:
            yield TextDelta(text=text)
        if isinstance(thought, str) and thought:
            yield ReasoningDelta(text=thought)
        if isinstance(arguments, str) and isinstance(index, int):
            yield from self._calls.take(index, None, None, arguments)

    def _end(self, reason: object) -> Said:
        if reason is None:
            return Said()
        if not isinstance(reason, str) or reason not in _FINISHES:
            raise refusal(f"the upstream model ended its answer with {reason!r}")
        return Said(events=tuple(self._calls.end()), finish=_FINISHES[reason])


def _turns(messages: Sequence[Message]) -> list[Json]:
    """Roles take turns: what follows in the same role is one turn."""
    turns: list[dict[str, object]] = []
    for message in messages:
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = list(_blocks(message))
        if turns and turns[-1]["role"] == role:
            before = turns[-1]["content"]
            turns[-1]["content"] = [*before, *blocks] if isinstance(before, list) else blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return list(turns)


def _blocks(message: Message) -> Iterator[Json]:
    if message.role is Role.TOOL:
        yield {
            "type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.text,
            "is_error": message.is_error,
        }  # fmt: skip
        return
    if message.text.strip():
        yield {"type": "text", "text": message.text}
    for call in message.tool_calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call.arguments)}


def _arguments(text: str) -> object:
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise refusal(f"the arguments of a tool call in the history are no JSON: {text[:80]!r}") from error
    return arguments


def _tool(tool: ToolSpec) -> Json:
    definition = orjson.loads(tool.definition)
    if not isinstance(definition, dict):
        raise EngineError(f"the definition of tool {tool.name} is no object")
    schema = definition.get("parameters") or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": definition.get("description") or "", "input_schema": schema}


def _choice(choice: str) -> Json:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    return {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
