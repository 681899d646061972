"""What is kept of requests, so that the next one of a session costs only what is new in it: bounded in size."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from openforgerl.dialects.rereading import BODIES_MOST, JsonMemory
from openforgerl.records import Message, ModelRequest

BODY_BYTES_MOST = 256 << 20
"""Of the bodies of all sessions together; the sessions that were used longest ago let go of theirs."""


class BodyBudget:
    """The memories of all open sessions, the latest used last."""

    def __init__(self, most_bytes: int = BODY_BYTES_MOST) -> None:
        self._most_bytes = most_bytes
        self._sizes: OrderedDict[JsonMemory, int] = OrderedDict()
        self.size = 0

    def used(self, memory: JsonMemory) -> None:
        self.size += memory.size - self._sizes.pop(memory, 0)
        self._sizes[memory] = memory.size
        while self.size > self._most_bytes:
            oldest, size = self._sizes.popitem(last=False)
            oldest.forget()
            self.size -= size

    def closed(self, memory: JsonMemory) -> None:
        self.size -= self._sizes.pop(memory, 0)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The digests of the beginnings of a message list."""

    messages: tuple[Message, ...]
    digests: list[bytes]


class Digests:
    """Of the requests of one session, by their meaning: an equal digest is an equal request."""

    def __init__(self) -> None:
        self._chains: tuple[_Chain, ...] = ()

    def of(self, request: ModelRequest) -> str:
        """What was passed over does not count, nor whether the answer is streamed."""
        messages = request.messages
        best, shared = None, 0
        for chain in self._chains:
            count = _shared(chain.messages, messages)
            if count > shared or best is None:
                best, shared = chain, count
        digests = best.digests[:shared] if best else []
        for message in messages[shared:]:
            digests.append(_digest((digests[-1] if digests else b"") + orjson.dumps(message)))
        others = tuple(each for each in self._chains if each is not best or shared < len(each.messages))
        self._chains = (_Chain(messages, digests), *others)[:BODIES_MOST]
        rest = orjson.dumps(replace(request, messages=(), ignored=(), images={}))
        return _digest((digests[-1] if digests else b"") + rest).hex()


def digest_of(request: ModelRequest) -> str:
    """Of one request."""
    return Digests().of(request)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def _shared(left: Sequence[Message], right: Sequence[Message]) -> int:
    """Number of leading messages that both have."""
    if left == right[: len(left)]:
        return len(left)
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a is not b and a != b), min(len(left), len(right)))
