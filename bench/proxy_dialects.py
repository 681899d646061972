"""The bench's conversations in each wire format: path, body, and the text of an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Messages = Sequence[dict[str, Any]]

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
LAST = {
    "chat": b"[DONE]",
    "messages": b"event: message_stop",
    "responses": b"event: response.completed",
    "gemini": b'"finishReason":"STOP"',
}
"""What stands in a stream that is whole."""


def path(dialect: str, *, stream: bool) -> str:
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return PATHS.get(dialect, f"/v1beta/models/toy:{method}")


def body(dialect: str, messages: Messages, tools: Messages, *, stream: bool) -> bytes:
    """An engine is told by an odd number of tokens to stream: see `proxy_engine`."""
    made = {"chat": _chat, "messages": _messages, "responses": _responses, "gemini": _gemini}[dialect]
    request = made(messages, [tool["function"] for tool in tools], 257 if stream else 256)
    if stream and dialect != "gemini":
        request["stream"] = True
    return json.dumps(request, separators=(",", ":")).encode()


def said(dialect: str, answer: bytes, *, stream: bool) -> str:
    """The text of an answer. Raises ValueError where it is not whole."""
    head, _, data = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head[:20] or answer.count(b" tests") < 8 or (stream and LAST[dialect] not in data):
        raise ValueError(f"not a whole answer: {answer[:300]!r} ... {answer[-200:]!r}")
    if not stream:
        return _text(dialect, json.loads(data))
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    return "".join(_delta(dialect, event) for event in events)


def _chat(messages: Messages, tools: Messages, most: int) -> dict[str, Any]:
    offered = [{"type": "function", "function": tool} for tool in tools]
    request = {"model": "toy", "messages": messages, "tools": offered, "temperature": 1.0, "max_tokens": most}
    return {**request, "stream_options": {"include_usage": True}} if most % 2 else request


def _messages(messages: Messages, tools: Messages, most: int) -> dict[str, Any]:
    offered = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in tools
    ]
    turns = []
    for each in messages[1:]:
        block: dict[str, Any] = {"type": "text", "text": each["content"]}
        if each["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": each["tool_call_id"], "content": each["content"]}
        uses = [
            {"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
             "input": json.loads(call["function"]["arguments"])}
            for call in each.get("tool_calls", ())
        ]  # fmt: skip
        turns.append({"role": "assistant" if each["role"] == "assistant" else "user", "content": [block, *uses]})
    request = {"model": "toy", "system": messages[0]["content"], "messages": turns, "tools": offered}
    return {**request, "temperature": 1.0, "max_tokens": most}


def _responses(messages: Messages, tools: Messages, most: int) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for each in messages[1:]:
        if each["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": each["tool_call_id"], "output": each["content"]})
            continue
        kind = "output_text" if each["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": each["content"]}]
        items.append({"type": "message", "role": each["role"], "content": content})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]} for call in each.get("tool_calls", ())
        ]
    request = {"model": "toy", "instructions": messages[0]["content"], "input": items, "store": False}
    offered = [{"type": "function", **tool} for tool in tools]
    return {**request, "tools": offered, "temperature": 1.0, "max_output_tokens": most}


def _gemini(messages: Messages, tools: Messages, most: int) -> dict[str, Any]:
    contents = []
    for each in messages[1:]:
        part: dict[str, Any] = {"text": each["content"]}
        if each["role"] == "tool":
            part = {"functionResponse": {"name": "tool_1", "response": {"output": each["content"]}}}
        calls = [
            {"functionCall": {"name": call["function"]["name"], "args": json.loads(call["function"]["arguments"])}}
            for call in each.get("tool_calls", ())
        ]
        contents.append({"role": "model" if each["role"] == "assistant" else "user", "parts": [part, *calls]})
    declared = [
        {"name": tool["name"], "description": tool["description"], "parametersJsonSchema": tool["parameters"]}
        for tool in tools
    ]
    return {
        "systemInstruction": {"parts": [{"text": messages[0]["content"]}]},
        "contents": contents,
        "tools": [{"functionDeclarations": declared}],
        "generationConfig": {"temperature": 1.0, "maxOutputTokens": most},
    }


def _text(dialect: str, answer: dict[str, Any]) -> str:
    match dialect:
        case "chat":
            return str(answer["choices"][0]["message"]["content"])
        case "messages":
            return "".join(block["text"] for block in answer["content"])
        case "responses":
            return "".join(part["text"] for item in answer["output"] for part in item["content"])
    return _parts(answer)


def _delta(dialect: str, event: dict[str, Any]) -> str:
    match dialect:
        case "chat":
            return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        case "messages":
            return str(event["delta"].get("text", "")) if event["type"] == "content_block_delta" else ""
        case "responses":
            return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
    return _parts(event)


def _parts(answer: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in answer["candidates"][0].get("content", {}).get("parts", ()))
