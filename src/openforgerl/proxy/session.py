"""A session that is open: its key, its limits, its counters, and the calls that it made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openforgerl.dialects.rereading import JsonMemory
from openforgerl.errors import AccessError
from openforgerl.proxy.bodies import Reading
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.remembering import Digests
from openforgerl.proxy.retries import RetryBook
from openforgerl.records import ModelRequest, RecordedCall, Session
from openforgerl.tokens.assembly import Assembler, Prompt

if TYPE_CHECKING:
    from openforgerl.proxy.call import Call

_LARGE_TEXT = 1 << 16
"""New characters of a request from which on it is assembled in a thread, so that other sessions are not held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """What GET /sessions/{id} shows."""

    session: Session
    calls_in_flight: int
    """Not committed yet."""
    clients_connected: int
    """That wait for the rest of an answer."""
    counters: Mapping[str, int]
    last_failure: str = ""
    """The counter that its newest call failed by (engine_errors, store_errors, context_full); "" if it did not."""


@dataclass(slots=True, kw_only=True, eq=False)
class LiveSession:
    """Everything of a session that dies with its close."""

    session: Session
    key_hash: bytes
    assembler: Assembler
    opened_at: float
    """On the monotonic clock."""
    totals: Counter[str]
    """Of the whole proxy."""
    loop_turn: asyncio.Lock
    """Of the whole proxy: the event loop assembles one prompt a turn, and serves streams and timers in between."""
    counters: Counter[str] = field(default_factory=Counter)
    retries: RetryBook[Call] = field(default_factory=RetryBook)
    bodies: JsonMemory = field(default_factory=JsonMemory)
    reading: Reading = field(default_factory=Reading)
    digests: Digests = field(default_factory=Digests)
    calls: set[Call] = field(default_factory=set)
    """Not committed yet."""
    work: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks that still write something of this session."""
    clients: int = 0
    last_failure: str = ""
    closed: bool = False
    """The key is dead."""
    sealed: bool = False
    """Nothing of its calls changes any more."""
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next_index: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """First come, first assembled."""
    _in_thread: bool = False
    _learned: list[RecordedCall] = field(default_factory=list)
    """What came to be known while a thread used the assembler."""

    async def assemble(self, request: ModelRequest) -> tuple[Prompt, int]:
        """The prompt, and its place in the order of sampling. Raises AssemblyError."""
        async with self._turn:
            prompt = await self._assembled(request)
            self._next_index += 1
            return prompt, self._next_index - 1

    async def count_ids(self, request: ModelRequest) -> int:
        """Of the prompt that this request would have; nothing is sampled. Raises AssemblyError."""
        async with self._turn:
            self.count("prompts_counted")
            return len((await self._assembled(request)).ids)

    async def _assembled(self, request: ModelRequest) -> Prompt:
        if _size(request, self.assembler.known(request)) >= _LARGE_TEXT:
            return await self._assemble_apart(request)
        async with self.loop_turn:
            prompt = self.assembler.assemble(request)
            await asyncio.sleep(0)
            return prompt

    async def _assemble_apart(self, request: ModelRequest) -> Prompt:
        self._in_thread = True
        try:
            return await asyncio.to_thread(self.assembler.assemble, request)
        finally:
            self._in_thread = False
            learned, self._learned = self._learned, []
            for record in learned:
                self.assembler.remember(record)

    def remember(self, record: RecordedCall) -> None:
        """At once, or before the next prompt is assembled: the assembler is never used by two threads."""
        if self._in_thread:
            self._learned.append(record)
        else:
            self.assembler.remember(record)

    def count(self, name: str, number: int = 1) -> None:
        self.counters[name] += number
        self.totals[name] += number

    def fail(self, name: str) -> None:
        """A call failed, by no doing of its client."""
        self.count(name)
        self.last_failure = name

    def admit(self, config: ProxyConfig) -> None:
        """One more call. Raises AccessError, counted."""
        if self.closed:
            raise session_over(self.session.session_id)
        limit = config.max_calls_per_session
        if limit is not None and self.counters["calls"] >= limit:
            self.count("calls_exhausted")
            message = f"this session has made its {limit} model calls; no more are answered"
            raise AccessError(message, http_status=403, code="calls_exhausted")
        if len(self.calls) >= config.max_concurrent_calls:
            self.count("calls_refused_for_now")
            message = f"{config.max_concurrent_calls} calls of this session are being answered; try again later"
            raise AccessError(message, http_status=429, code="too_many_calls")
        self.count("calls")

    def status(self) -> SessionStatus:
        return SessionStatus(
            session=self.session,
            calls_in_flight=len(self.calls),
            clients_connected=self.clients,
            counters=dict(self.counters),
            last_failure=self.last_failure,
        )


def _size(request: ModelRequest, known: int) -> int:
    """Characters to assemble, about; the first `known` messages cost nothing."""
    new = request.messages[known:]
    said = sum(len(message.text) + len(message.reasoning) for message in new)
    tools = 0 if known else sum(len(tool.definition) for tool in request.tools)
    return said + tools + sum(len(call.arguments) for message in new for call in message.tool_calls)


def session_over(session_id: str) -> AccessError:
    return AccessError(f"session {session_id} is closed", http_status=410, code="session_closed")
