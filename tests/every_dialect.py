"""One plain call in each wire format, and how its answers are read: for what must hold in all of them alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openforgerl.proxy.access import SessionAccess


@dataclass(frozen=True)
class Wire:
    """`model` and `text` are put into the body, or into the path."""

    name: str
    path: str
    streamed_path: str
    key_header: str
    body: Callable[[str, str], dict[str, Any]]
    text: Callable[[Any], str]
    """Of a plain answer."""
    usage: Callable[[Any], tuple[object, object]]
    """Tokens of the prompt and of the answer."""
    delta: Callable[[Any], str]
    """The text of one event of a stream."""
    final: Callable[[Any], bool]
    """Whether an event ends a whole answer."""

    def url(self, base: str, access: SessionAccess, *, model: str = "m", stream: bool = False) -> str:
        path = self.streamed_path if stream else self.path
        return f"{base}/s/{access.session_id}{path.replace('MODEL', model)}"

    def headers(self, access: SessionAccess) -> dict[str, str]:
        key = f"Bearer {access.key}" if self.key_header == "Authorization" else access.key
        return {self.key_header: key, "Content-Type": "application/json"}

    def asked(self, text: str, *, model: str = "m", stream: bool = False) -> dict[str, Any]:
        said = self.body(model, text)
        return {**said, "stream": True} if stream and self.path == self.streamed_path else said


def _chat(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream_options": {"include_usage": True}}


def _messages(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "max_tokens": 100_000, "messages": [{"role": "user", "content": text}]}


def _responses(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "input": text, "store": False}


def _gemini(model: str, text: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}]}


def _gemini_text(answer: Any) -> str:
    parts = answer["candidates"][0].get("content", {}).get("parts", []) if answer.get("candidates") else []
    return "".join(part.get("text", "") for part in parts)


WIRES = (
    Wire(
        "chat", "/v1/chat/completions", "/v1/chat/completions", "Authorization", _chat,
        text=lambda answer: answer["choices"][0]["message"]["content"],
        usage=lambda answer: (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]),
        delta=lambda event: "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ())),
        final=lambda event: event == "[DONE]",
    ),
    Wire(
        "messages", "/v1/messages", "/v1/messages", "x-api-key", _messages,
        text=lambda answer: "".join(block["text"] for block in answer["content"]),
        usage=lambda answer: (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]),
        delta=lambda event: event.get("delta", {}).get("text", ""),
        final=lambda event: event.get("type") == "message_stop",
    ),
    Wire(
        "responses", "/v1/responses", "/v1/responses", "Authorization", _responses,
        text=lambda answer: "".join(part["text"] for item in answer["output"] for part in item["content"]),
        usage=lambda answer: (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]),
        delta=lambda event: event["delta"] if event.get("type") == "response.output_text.delta" else "",
        final=lambda event: event.get("type") == "response.completed",
    ),
    Wire(
        "gemini", "/v1beta/models/MODEL:generateContent", "/v1beta/models/MODEL:streamGenerateContent?alt=sse",
        "x-goog-api-key", _gemini,
        text=_gemini_text,
        usage=lambda answer: (
            answer["usageMetadata"]["promptTokenCount"], answer["usageMetadata"]["candidatesTokenCount"]
        ),
        delta=_gemini_text,
        final=lambda event: bool(event.get("candidates") and event["candidates"][0].get("finishReason")),
    ),
)  # fmt: skip
BY_NAME = {wire.name: wire for wire in WIRES}


def events_of(raw: bytes) -> list[Any]:
    """What the whole `data:` lines of a stream say; a line that was cut is left out."""
    lines = [line.removeprefix("data: ") for line in raw.decode(errors="replace").split("\n")[:-1]]
    said = [line.rstrip("\r") for line in lines if line.startswith(("{", "[DONE]"))]
    return [line if line == "[DONE]" else json.loads(line) for line in said]


def comments_of(raw: bytes) -> list[str]:
    """Lines that no client takes for data."""
    return [line for line in raw.decode().split("\n") if line.startswith(":")]
