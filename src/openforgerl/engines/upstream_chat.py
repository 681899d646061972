"""OpenAI's Chat Completions as a text API: a conversation out, the events of an answer back."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from openforgerl.engines.limits import refusal
from openforgerl.engines.text_wire import Json, Said, TextAsked, ToolCalls, is_done, item
from openforgerl.errors import EngineError
from openforgerl.records import CallEvent, EngineFinish, Message, ReasoningDelta, Role, TextDelta

_FINISHES = {"stop": EngineFinish.STOP, "tool_calls": EngineFinish.STOP, "length": EngineFinish.LENGTH}


class ChatWire:
    path = "/v1/chat/completions"
    enforces_schema = True

    def body(self, asked: TextAsked) -> bytes:
        used, request = asked.sampling, asked.conversation
        body: dict[str, object] = {
            "model": asked.model,
            "messages": [_message(each) for each in request.messages],
            "stream": True,
            "temperature": used.temperature,
            "top_p": used.top_p,
            "presence_penalty": used.presence_penalty,
            "frequency_penalty": used.frequency_penalty,
            "seed": used.seed,
            "max_tokens": asked.max_tokens,
            "stop": list(used.stop) or None,
        }
        if request.tools:
            body["tools"] = [{"type": "function", "function": orjson.loads(tool.definition)} for tool in request.tools]
            body["tool_choice"] = _choice(request.tool_choice)
        if request.output_schema:
            schema = {"name": "answer", "schema": orjson.loads(request.output_schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return orjson.dumps({name: value for name, value in body.items() if value is not None})

    def reader(self) -> ChatReader:
        return ChatReader()


class ChatReader:
    """One stream."""

    def __init__(self) -> None:
        self._calls = ToolCalls()

    def read(self, data: bytes) -> Said:
        if is_done(data):
            return Said()
        choices = item(item(data), "choices")
        if not isinstance(choices, list) or not choices:
            return Said()
        events = tuple(self._events(item(choices[0], "delta")))
        reason = item(choices[0], "finish_reason")
        if reason is None:
            return Said(events=events)
        if not isinstance(reason, str) or reason not in _FINISHES:
            raise refusal(f"the upstream model ended its answer with {reason!r}")
        return Said(events=(*events, *self._calls.end()), finish=_FINISHES[reason])

    def _events(self, delta: object) -> Iterator[CallEvent]:
        reasoning = item(delta, "reasoning_content") or item(delta, "reasoning")
        if isinstance(reasoning, str) and reasoning:
            yield ReasoningDelta(text=reasoning)
        text = item(delta, "content")
        if isinstance(text, str) and text:
            yield TextDelta(text=text)
        calls = item(delta, "tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function, index = item(call, "function"), item(call, "index")
            if not isinstance(index, int):
                raise EngineError("the upstream model sent a tool call without an index")
            yield from self._calls.take(index, item(call, "id"), item(function, "name"), item(function, "arguments"))


def _message(message: Message) -> Json:
    said: dict[str, object] = {"role": message.role.value, "content": message.text}
    if message.role is Role.TOOL:
        said["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        said["content"] = message.text or None
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return said


def _choice(choice: str) -> object:
    named = {"type": "function", "function": {"name": choice}}
    return choice if choice in ("auto", "none", "required") else named
