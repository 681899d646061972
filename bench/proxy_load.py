"""Conversations of the proxy's bench, a raw HTTP/1.1 client for them, and what a process has used."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import proxy_dialects
from proxy_stub import WORDS

CHARS = 4.6
"""Characters a token of this text, under the tokenizer of Qwen3."""
NEW_TOKENS = 436
"""Of a message that follows an answer of 64 tokens: 500 new ones a call."""
ANSWER = "".join(WORDS)
_FILES = ("argparse", "ast", "typing", "inspect", "tarfile", "subprocess", "socket", "pathlib", "zipfile", "doctest")


@cache
def corpus() -> str:
    folder = Path(os.__file__).parent
    return "".join((folder / f"{name}.py").read_text(encoding="ascii", errors="ignore") for name in _FILES)


def cut(characters: int, at: int) -> str:
    text = corpus()
    at %= len(text) - characters
    return text[at : at + characters]


@cache
def tools() -> list[dict[str, Any]]:
    """About 2,000 tokens."""
    text = {"type": "string", "description": cut(95, 700)}
    parameters = {
        "type": "object",
        "required": ["path"],
        "properties": {"path": text, "command": text, "timeout": {"type": "integer", "minimum": 0}},
    }
    return [
        {
            "type": "function",
            "function": {"name": f"tool_{n}", "description": cut(420, n * 5000), "parameters": parameters},
        }
        for n in range(12)
    ]


def history(tokens: int, turns: int, seed: int) -> list[dict[str, Any]]:
    """A system prompt of 2,000 tokens and so many turns, which end with a message to answer."""
    said: list[dict[str, Any]] = [{"role": "system", "content": cut(int(2000 * CHARS), 40_000)}]
    each = max(8, int((tokens * CHARS - (turns - 1) * len(ANSWER)) / turns))
    call_id = ""
    for turn in range(turns):
        text = f"{seed} " + cut(each, seed * 9001 + turn * 3001)
        said.append(
            {"role": "tool", "tool_call_id": call_id, "content": text} if call_id else {"role": "user", "content": text}
        )
        if turn < turns - 1:
            call_id = "" if turn % 2 else f"call{seed}x{turn}"
            said.append(assistant(f"{turn} {ANSWER}", call_id))
    return said


def assistant(text: str, call_id: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call_id:
        function = {"name": "tool_1", "arguments": json.dumps({"path": "/src/a.py", "command": "pytest -q"})}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    return message


@dataclass
class Conversation:
    """Grows by the answer and a new message each call."""

    messages: list[dict[str, Any]]
    seed: int
    new_tokens: int = NEW_TOKENS

    dialect: str = "chat"

    def body(self, *, stream: bool) -> bytes:
        return proxy_dialects.body(self.dialect, self.messages, tools(), stream=stream)

    def grow(self, answer: str) -> None:
        text = f"{self.seed} " + cut(int(self.new_tokens * CHARS), self.seed * 7919 + len(self.messages) * 3001)
        self.messages += [assistant(answer), {"role": "user", "content": text}]


class Connection(asyncio.Protocol):
    """Keep-alive; one call at a time."""

    done: asyncio.Future[None]

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.buffer = bytearray()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("closed"))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0 or self.done.done():
            return
        head = bytes(self.buffer[:end]).lower()
        place = head.find(b"\r\ncontent-length:")
        if place >= 0:
            whole = len(self.buffer) - end - 4 >= int(head[place + 17 :].split(b"\r\n", 1)[0])
        else:
            whole = self.buffer.endswith(b"\r\n0\r\n\r\n")
        if whole:
            self.done.set_result(None)

    async def call(self, path: str, key: str, body: bytes) -> tuple[float, bytes]:
        """Seconds, and the whole answer with its head."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
        )
        self.buffer.clear()
        self.done = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await self.done
        return time.perf_counter() - begun, bytes(self.buffer)


async def connect(address: tuple[str, int]) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, *address)
    connection.done = asyncio.get_running_loop().create_future()
    return connection


@dataclass
class Target:
    """Where a session's calls go."""

    address: tuple[str, int]
    path: str
    """In front of the dialect's own."""
    key: str


@dataclass
class Measured:
    latencies: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu_s / len(self.latencies)

    @property
    def calls_per_s(self) -> float:
        return len(self.latencies) / self.wall_s

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def drive(
    targets: Sequence[Target], talks: Sequence[Conversation], calls: int, *, stream: bool, pid: int
) -> Measured:
    """All conversations at once, `calls` calls each, after the last one's connection stands."""
    lines = [await connect(target.address) for target in targets]
    measured = Measured()

    async def talk(line: Connection, target: Target, conversation: Conversation) -> None:
        for _ in range(calls):
            path = target.path + proxy_dialects.path(conversation.dialect, stream=stream)
            seconds, answer = await line.call(path, target.key, conversation.body(stream=stream))
            measured.latencies.append(seconds)
            conversation.grow(proxy_dialects.said(conversation.dialect, answer, stream=stream))

    before, begun = cpu_s(pid), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for line, target, conversation in zip(lines, targets, talks, strict=True):
            group.create_task(talk(line, target, conversation))
    measured.wall_s, measured.cpu_s = time.perf_counter() - begun, cpu_s(pid) - before
    for line in lines:
        line.transport.close()
    return measured


def cpu_s(pid: int) -> float:
    """Of a process and all its threads that live, in seconds."""
    return sum(int(text.split()[0]) for text in _threads(pid, "schedstat")) / 1e9


def _threads(pid: int, name: str) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield (thread / name).read_text()
        except OSError:
            continue


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
