"""The proxy without HTTP: sessions with their keys, and the calls that they make. No global state, no wire format."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from openforgerl.engines.base import Engine
from openforgerl.errors import AccessError, DialectError, EngineAborted, EngineError, StoreError
from openforgerl.proxy.access import SessionAccess, key_hash, new_key, opens
from openforgerl.proxy.call import Call, Parts, Stop
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.feed import Feed
from openforgerl.proxy.remembering import BodyBudget
from openforgerl.proxy.retries import RetryMarks
from openforgerl.proxy.session import LiveSession, SessionStatus, session_over
from openforgerl.records import EndedBy, Ending, Grade, HarnessCall, ModelRequest, Session
from openforgerl.store.sqlite import Store
from openforgerl.tokens.assembly import Assembler
from openforgerl.tokens.template import Template

_LABELS = (
    "user-agent", "idempotency-key", "x-stainless-retry-count", "x-claude-code-session-id", "x-claude-code-agent-id",
    "session-id", "thread-id", "x-codex-window-id", "x-session-id", "x-parent-session-id",
)  # fmt: skip
"""Headers that tell sub-agents, compaction and retries apart."""
_LABEL_CHARS = 200


class Gateway:
    """Answers and records calls while `running()` is entered."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        template: Template,
        config: ProxyConfig,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.store = store
        self.engine = engine
        self.totals: Counter[str] = Counter()
        self.template = template
        self._clock = clock
        self._parts = Parts(
            engine=engine, store=store, template=template, config=config, clock=clock, spawn=self._spawn
        )
        self._bodies = BodyBudget()
        self._live: dict[str, LiveSession] = {}
        self._running = False
        self._work: set[asyncio.Task[None]] = set()
        """Every task of the gateway: none of them raises, all of them have deadlines."""
        self._loading = asyncio.Lock()
        self._loop_turn = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Owns every task; on exit calls in flight are given up, recorded, and their sessions left open."""
        self._running = True
        try:
            yield
        finally:
            await asyncio.shield(self._end())

    async def open_session(self, session: Session, *, strip_system_lines: Sequence[str] | None = None) -> SessionAccess:
        """Durable on return. `strip_system_lines`: a rule of the harness; None: the proxy's. Raises StoreError."""
        await self._close_expired()
        if not session.created_at:
            session = replace(session, created_at=self._clock())
        await self.store.open_session(session)
        key = new_key()
        self._live[session.session_id] = LiveSession(
            session=session,
            key_hash=key_hash(key),
            assembler=Assembler(
                self.template,
                strip_system_lines=self.config.strip_system_lines if strip_system_lines is None else strip_system_lines,
                history_reasoning=self.config.history_reasoning,
            ),
            opened_at=time.monotonic(),
            totals=self.totals,
            loop_turn=self._loop_turn,
        )
        self.totals["sessions_opened"] += 1
        return SessionAccess(session_id=session.session_id, key=key)

    def authorize(self, session_id: str, key: str) -> LiveSession:
        """The open session that the key opens. Raises AccessError: 410 for one that is over, else 401."""
        live = self._live.get(session_id)
        if live is None and self._is_sealed(session_id):
            raise session_over(session_id)
        if live is None or not opens(key, live.key_hash):
            self.totals["keys_refused"] += 1
            raise AccessError("the API key does not open this session; use the one that POST /sessions gave")
        if live.closed or self._expired(live):
            raise session_over(session_id)
        return live

    def answer(self, live: LiveSession, dialect: str, request: ModelRequest, headers: Mapping[str, str]) -> Feed:
        """A new sample, or an earlier call where this is its known retry. Raises AccessError, EngineAborted."""
        if not self._running:
            raise EngineAborted(Stop.SHUTDOWN.value)
        digest, marks = live.digests.of(request), RetryMarks.of(headers)
        earlier = live.retries.earlier(digest, marks)
        if earlier is not None and not live.closed:
            live.count("retries_answered_again")
            return earlier.attach(retry=True)
        live.admit(self.config)
        intent = HarnessCall(
            call_id=secrets.token_hex(12),
            session_id=live.session.session_id,
            dialect=dialect,
            request=request,
            received_at=self._clock(),
            digest=digest,
            labels=_labels(request, headers),
        )
        call = Call(self._parts, live, intent, marks)
        live.retries.add(digest, call)
        live.calls.add(call)
        feed = call.attach()
        self._spawn(live, call.run())
        return feed

    def keep_body(self, live: LiveSession) -> None:
        """The memory of bodies of an open session was used; those of others may have to go."""
        if live.session.session_id in self._live:
            self._bodies.used(live.bodies)

    async def close_session(self, session_id: str, ending: Ending) -> None:
        """The key dies at once, calls in flight are given up and recorded, then the session is sealed.

        Closing again changes nothing: the first ending stays. Raises StoreError.
        """
        live = self._live.get(session_id)
        if live is None:
            if not self._is_sealed(session_id):
                await self.store.seal(session_id, ending)
            return
        live.closed = True
        async with live.closing:
            if session_id not in self._live:
                return
            await self._give_up(live, Stop.SESSION_CLOSED)
            live.sealed = True
            await self.store.seal(session_id, replace(ending, counters=dict(live.counters)))
            del self._live[session_id]
            self._bodies.closed(live.bodies)
            self.totals["sessions_closed"] += 1

    def count(self, session_id: str, name: str, number: int) -> None:
        """Something that happened outside the proxy, for the counters of an open session."""
        live = self._live.get(session_id)
        if live is not None and number:
            live.count(name, number)

    async def grade(self, session_id: str, grade: Grade) -> None:
        """Of a closed session; the last grade counts. Raises StoreError."""
        if self.store.session(session_id).ending is None:
            raise StoreError(f"session {session_id} is open; close it before it is graded")
        await self.store.grade(session_id, grade)

    def status(self, session_id: str) -> SessionStatus:
        """Raises StoreError where there is no such session."""
        live = self._live.get(session_id)
        if live is not None:
            return live.status()
        session = self.store.session(session_id)
        counters: Mapping[str, int] = session.ending.counters if session.ending else {}
        if not counters:
            calls = self.store.calls(session_id)
            counters = Counter({"calls": len(calls)}) + Counter(call.completion.value for call in calls)
        return SessionStatus(session=session, calls_in_flight=0, clients_connected=0, counters=counters)

    async def load_weights(self, folder: Path, policy_version: int) -> None:
        """One update at a time, each newer than the last. Raises DialectError (409) for an old one, EngineError."""
        async with self._loading:
            if policy_version <= (current := self.engine.policy_version):
                message = f"policy_version: {policy_version} is not greater than {current}, which is loaded"
                raise DialectError(message, field="policy_version", code="old_policy_version", http_status=409)
            try:
                async with asyncio.timeout(self.config.weights_timeout_s):
                    await self.engine.load_weights(folder, policy_version)
            except TimeoutError:
                raise EngineError(f"loading {folder} took longer than {self.config.weights_timeout_s:g} s") from None
        self.totals["weight_updates"] += 1

    @property
    def sessions_open(self) -> int:
        return len(self._live)

    @property
    def calls_in_flight(self) -> int:
        return sum(len(live.calls) for live in self._live.values())

    def _spawn(self, live: LiveSession, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        for owner in (live.work, self._work):
            owner.add(task)
            task.add_done_callback(owner.discard)

    async def _give_up(self, live: LiveSession, why: Stop) -> None:
        for call in tuple(live.calls):
            call.stop(why)
        await _wait(live.work, self.config.close_timeout_s)

    async def give_up(self) -> None:
        """Answer no further call; what is in flight is recorded as far as it came."""
        self._running = False
        for live in tuple(self._live.values()):
            for call in tuple(live.calls):
                call.stop(Stop.SHUTDOWN)
        await _wait(self._work, self.config.close_timeout_s)

    async def _end(self) -> None:
        await self.give_up()
        for task in self._work:
            task.cancel()
        await _wait(self._work, self.config.close_timeout_s)

    async def _close_expired(self) -> None:
        ending = Ending(ended_by=EndedBy.INFRA, reason="nobody closed the session before it expired")
        for session_id in [name for name, live in self._live.items() if self._expired(live)]:
            await self.close_session(session_id, ending)

    def _expired(self, live: LiveSession) -> bool:
        return time.monotonic() - live.opened_at > self.config.session_max_age_s

    def _is_sealed(self, session_id: str) -> bool:
        try:
            return self.store.session(session_id).ending is not None
        except StoreError:
            return False


def _labels(request: ModelRequest, headers: Mapping[str, str]) -> dict[str, str]:
    """A header's bytes that are no UTF-8 become "?"."""
    labels = {name: headers[name].encode(errors="replace").decode() for name in _LABELS if name in headers}
    if request.ignored:
        labels["ignored"] = ",".join(request.ignored)
    return {name: label[:_LABEL_CHARS] for name, label in labels.items()}


async def _wait(tasks: Iterable[asyncio.Task[None]], timeout_s: float) -> None:
    if left := tuple(tasks):
        await asyncio.wait(left, timeout=timeout_s)
