"""A strict reader of the Gemini stream: what a client may rely on, and what it makes of the responses."""

from __future__ import annotations

import json
from typing import Any


class WrongStreamError(Exception):
    """The stream breaks a rule of the format."""


def responses_of(raw: bytes, *, is_sse: bool) -> list[dict[str, Any]]:
    """The responses of a whole stream."""
    if not is_sse:
        found: list[dict[str, Any]] = json.loads(raw)
        return found
    *blocks, rest = raw.decode().split("\r\n\r\n")
    bare = [block for block in blocks if not block.startswith("data: ")]
    found = [json.loads(block.removeprefix("data: ")) for block in blocks if block.startswith("data: ")]
    failed = bool(found) and "error" in found[-1]
    if rest or bare != [block.removeprefix("data: ") for block in blocks[-1:] if failed]:
        raise WrongStreamError("what is no data stands in the stream, or no bare error before the event of an error")
    if bare and blocks[-2:-1] != bare:
        raise WrongStreamError("the bare error is not right before its event")
    return found


class StreamReader:
    """Takes response by response; raises WrongStreamError at the first that may not stand there."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self.ended = False

    def take(self, response: dict[str, Any]) -> None:
        if self.ended or self.error:
            raise WrongStreamError("a response after the end")
        if "error" in response:
            if set(response) != {"error"}:
                raise WrongStreamError("an error beside an answer")
            self.error = response["error"]
            return
        (candidate,) = response["candidates"]
        if self.last and response["responseId"] != self.last["responseId"]:
            raise WrongStreamError("the response has another id")
        if candidate["content"]["role"] != "model" or not candidate["content"]["parts"]:
            raise WrongStreamError("a response without parts: chats drop the whole turn")
        for part in candidate["content"]["parts"]:
            self._add(part)
        self.last, self.ended = response, "finishReason" in candidate

    def _add(self, part: dict[str, Any]) -> None:
        """Texts that follow each other are one."""
        if "functionCall" in part:
            if not isinstance(part["functionCall"]["args"], dict):
                raise WrongStreamError("the arguments of a function are no object")
            self.parts.append(part)
            return
        before = self.parts[-1] if self.parts else {}
        if "text" in before and before.get("thought") == part.get("thought"):
            if "thoughtSignature" in part:
                raise WrongStreamError("a signature in the middle of a text")
            before["text"] += part["text"]
        elif part["text"]:
            self.parts.append(dict(part))

    def whole(self) -> dict[str, Any]:
        """As the plain answer would be."""
        (candidate,) = self.last["candidates"]
        content = {"parts": self.parts or [{"text": ""}], "role": "model"}
        return {**self.last, "candidates": [{**candidate, "content": content}]}


def read_stream(raw: bytes, *, is_sse: bool = True) -> StreamReader:
    """The state behind the last response; the stream must have an end."""
    reader = StreamReader()
    for response in responses_of(raw, is_sse=is_sse):
        reader.take(response)
    if not reader.ended and reader.error is None:
        raise WrongStreamError("the stream has no end")
    return reader
