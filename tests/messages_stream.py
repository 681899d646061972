"""A strict reader of the Messages stream: what a client may rely on, and what it makes of the events."""

from __future__ import annotations

import json
from typing import Any

DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


class WrongStreamError(Exception):
    """The stream breaks a rule of the format."""


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The data of each event; the name beside it must be its type."""
    blocks = raw.decode().split("\n\n")
    assert blocks.pop() == "", "the stream ends in mid event"
    found = []
    for block in blocks:
        name, data = block.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        found.append(json.loads(data.removeprefix("data: ")))
        assert found[-1]["type"] == name.removeprefix("event: ")
    return found


class StreamReader:
    """Takes event by event; raises WrongStreamError at the first that may not stand there."""

    def __init__(self) -> None:
        self.message: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self.ended = False
        self._open: dict[str, Any] | None = None
        self._json = ""
        self._delta_seen = False

    def take(self, event: dict[str, Any]) -> None:
        if self.ended or self.error:
            raise WrongStreamError(f"{event['type']} after the end")
        if event["type"] == "ping":
            return
        if event["type"] == "error":
            self.error = event["error"]
            return
        if event["type"] == "message_start":
            self._start(event["message"])
            return
        if self.message is None:
            raise WrongStreamError(f"{event['type']} before message_start")
        getattr(self, f"_{event['type']}")(self.message, event)

    def _start(self, message: dict[str, Any]) -> None:
        if self.message is not None:
            raise WrongStreamError("a second message_start")
        if message["content"] or message["stop_reason"] is not None or message["stop_sequence"] is not None:
            raise WrongStreamError("the message starts with its end")
        self.message = message

    def _content_block_start(self, message: dict[str, Any], event: dict[str, Any]) -> None:
        if self._open is not None or self._delta_seen:
            raise WrongStreamError("a block starts where none may")
        if event["index"] != len(message["content"]):
            raise WrongStreamError(f"block {event['index']} is number {len(message['content'])}")
        self._open, self._json = event["content_block"], ""
        if any(self._open.get(name) for name in ("text", "thinking", "signature", "input")):
            raise WrongStreamError("a block starts with content")
        message["content"].append(self._open)

    def _content_block_delta(self, message: dict[str, Any], event: dict[str, Any]) -> None:
        block = self._opened(message, event)
        kind = event["delta"]["type"]
        names = DELTAS[block["type"]]
        if kind not in names:
            raise WrongStreamError(f"{kind} in a block of {block['type']}")
        piece = event["delta"][names[kind]]
        if kind == "input_json_delta":
            self._json += piece
        elif block.get("signature"):
            raise WrongStreamError(f"{kind} behind the signature")
        else:
            block[names[kind]] += piece

    def _content_block_stop(self, message: dict[str, Any], event: dict[str, Any]) -> None:
        block = self._opened(message, event)
        if block["type"] == "tool_use":
            block["input"] = json.loads(self._json)
            if not isinstance(block["input"], dict):
                raise WrongStreamError("the input of a tool is no object")
        if block["type"] == "thinking" and not block["signature"]:
            raise WrongStreamError("thinking without a signature")
        self._open = None

    def _message_delta(self, message: dict[str, Any], event: dict[str, Any]) -> None:
        if self._open is not None or self._delta_seen:
            raise WrongStreamError("message_delta where none may stand")
        if event["delta"]["stop_reason"] is None:
            raise WrongStreamError("an end without a reason")
        message.update(event["delta"], usage={**message["usage"], **event["usage"]})
        self._delta_seen = True

    def _message_stop(self, message: dict[str, Any], event: dict[str, Any]) -> None:
        if not self._delta_seen:
            raise WrongStreamError("message_stop before message_delta")
        self.ended = True

    def _opened(self, message: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
        if self._open is None or event["index"] != len(message["content"]) - 1:
            raise WrongStreamError(f"block {event['index']} is not open")
        return self._open


def read_stream(raw: bytes) -> StreamReader:
    """The state behind the last event; the stream must have an end."""
    reader = StreamReader()
    for event in events_of(raw):
        reader.take(event)
    if not reader.ended and reader.error is None:
        raise WrongStreamError("the stream has no end")
    return reader
