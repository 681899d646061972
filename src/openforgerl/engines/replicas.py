"""Several servers of one model behind one engine: which one a session talks to, and how a request reaches it.

A request is repeated only while nothing of an answer has come. Closing what `post` gives cancels it at the server.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import orjson

from openforgerl.engines.flights import Flight
from openforgerl.engines.limits import refusal
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.errors import ConfigError, EngineAborted, EngineError, EngineTimeout

HEALTH_S = 2.0
"""Between two looks at a server; a restart takes longer, so that none goes unseen."""
ATTEMPTS = 4
_PAUSE_S = 0.25
"""Before the second attempt; it doubles."""
_PATIENCE = 4
"""A look waits so many times as long as a connection may take: a starved server is slow, not gone."""
_SESSIONS = 1 << 16
_BUSY = frozenset({408, 429, 502, 503, 504})
_ERROR_BYTES = 1 << 14
_FAULTS = (aiohttp.ClientError, ConnectionError, TimeoutError, ValueError)
"""What a connection may raise."""

Restore = Callable[["Replica"], Awaitable[None]]


class Replica:
    """One server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.healthy = True
        self.current = True
        """It samples with the newest weights. One that failed an update, or was started again since, does not."""
        self.in_flight = 0


class Replicas:
    """Made and used inside one event loop."""

    def __init__(self, config: RemoteEngineConfig) -> None:
        self.all = tuple(Replica(url) for url in config.urls)
        self.counters: Counter[str] = Counter()
        self.updated = False
        """The servers sample with other weights than those of their start."""
        self._config = config
        self._of: OrderedDict[str, Replica] = OrderedDict()
        self._http = _client(config)
        self._watch: asyncio.Task[None] | None = None

    def watch(self, health_path: str, restore: Restore) -> None:
        """Look at the servers from now on; `restore` makes one current again that was away."""
        self._watch = asyncio.create_task(self._look(health_path, restore))

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        await self._http.close()

    def choose(self, session_id: str, tried: frozenset[Replica] = frozenset()) -> Replica:
        """The session's own where that is well, else the one with the fewest calls. Raises EngineError."""
        able = [each for each in self.all if each.current]
        well = [each for each in able if each.healthy and each not in tried]
        own = self._of.get(session_id)
        if own in well:
            self._of.move_to_end(session_id)
            return own
        candidates = well or [each for each in able if each not in tried] or able
        if not candidates:
            raise EngineError(f"no engine has the newest weights: {', '.join(each.url for each in self.all)}")
        chosen = min(candidates, key=lambda each: each.in_flight)
        if own is not None and own is not chosen:
            self.counters["sessions_moved"] += 1
        self._of[session_id] = chosen
        if len(self._of) > _SESSIONS:
            self._of.popitem(last=False)
        return chosen

    @asynccontextmanager
    async def post(
        self, session_id: str, path: str, body: bytes, flight: Flight
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an answer as they come. Raises EngineError; EngineAborted once some have come."""
        replica, response, first = await self._begun(session_id, path, body, flight)
        try:
            with flight.stoppable(response.close):
                yield self._parts(replica, response, first)
        finally:
            response.close()
            replica.in_flight -= 1

    async def ask(self, replica: Replica, method: str, path: str, body: object = None, within_s: float = 30.0) -> bytes:
        """A small question to one server: its answer. Raises EngineError."""
        data = None if body is None else orjson.dumps(body)
        try:
            async with (
                asyncio.timeout(within_s),
                self._http.request(method, replica.url + path, data=data, headers=_JSON) as response,
            ):
                answer = await response.read()
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineError(f"{method} {replica.url}{path}: {_said(error)}") from error
        except TimeoutError as error:
            raise EngineTimeout(f"{method} {replica.url}{path}: no answer within {within_s:g} s") from error
        except _FAULTS as error:
            raise EngineError(f"{method} {replica.url}{path}: {_said(error)}") from error
        if response.status != 200:
            raise _refused(replica, path, response.status, answer)
        return answer

    async def _begun(
        self, session_id: str, path: str, body: bytes, flight: Flight
    ) -> tuple[Replica, aiohttp.ClientResponse, bytes]:
        tried: frozenset[Replica] = frozenset()
        for attempt in range(ATTEMPTS):
            try:
                return await self._attempt(session_id, path, body, flight, tried)
            except EngineError as error:
                if flight.interrupted or not error.retryable or attempt == ATTEMPTS - 1:
                    raise
            self.counters["requests_repeated"] += 1
            tried |= {self._of[session_id]} if session_id in self._of else set()
            if len(tried) >= len(self.all):
                tried = frozenset()
                await asyncio.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self, session_id: str, path: str, body: bytes, flight: Flight, tried: frozenset[Replica]
    ) -> tuple[Replica, aiohttp.ClientResponse, bytes]:
        replica = self.choose(session_id, tried)
        replica.in_flight += 1
        try:
            response, first = await self._first_bytes(replica, path, body, flight)
        except BaseException:
            replica.in_flight -= 1
            raise
        return replica, response, first

    async def _first_bytes(
        self, replica: Replica, path: str, body: bytes, flight: Flight
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Raises EngineError; EngineAborted where the flight was interrupted."""
        loop = asyncio.get_running_loop()
        response = None
        try:
            async with asyncio.timeout(None) as limit:
                if flight.interrupted:
                    limit.reschedule(0)
                with flight.stoppable(lambda: limit.reschedule(loop.time())):
                    response = await self._http.post(replica.url + path, data=body, headers=_JSON)
                    if response.status != 200:
                        raise _refused(replica, path, response.status, await response.content.read(_ERROR_BYTES))
                    first = await response.content.readany()
        except _FAULTS as error:
            if response is not None:
                response.close()
            if flight.interrupted:
                raise EngineAborted("the call was interrupted by an update") from error
            if isinstance(error, aiohttp.SocketTimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                raise _silent(replica, self._config.silence_timeout_s) from error
            self._lost(replica)
            raise EngineError(f"the engine at {replica.url} cannot be reached: {_said(error)}") from error
        except BaseException:
            if response is not None:
                response.close()
            raise
        return response, first

    async def _parts(self, replica: Replica, response: aiohttp.ClientResponse, first: bytes) -> AsyncIterator[bytes]:
        part = first
        try:
            while part:
                yield part
                part = await response.content.readany()
        except aiohttp.SocketTimeoutError as error:
            raise _silent(replica, self._config.silence_timeout_s) from error
        except _FAULTS as error:
            raise EngineAborted(f"the engine at {replica.url} broke off: {_said(error)}; try again") from error

    async def _look(self, path: str, restore: Restore) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            async with asyncio.TaskGroup() as looks:
                for replica in self.all:
                    looks.create_task(self._look_at(replica, path, restore))

    async def _look_at(self, replica: Replica, path: str, restore: Restore) -> None:
        try:
            await self.ask(replica, "GET", path, within_s=_PATIENCE * self._config.connect_timeout_s)
            if not replica.healthy or not replica.current:
                await restore(replica)
        except EngineTimeout:  # it was reached, so it was not started again: it is slow
            replica.healthy = False
        except EngineError:
            self._lost(replica)
        else:
            replica.healthy = True

    def _lost(self, replica: Replica) -> None:
        """Who comes back may have been started again, with the weights of its start."""
        self.counters["replicas_lost"] += replica.healthy
        replica.healthy = False
        replica.current = replica.current and not self.updated


_JSON = {"Content-Type": "application/json"}


def _client(config: RemoteEngineConfig) -> aiohttp.ClientSession:
    """Raises ConfigError where the key's variable is not set."""
    headers = {}
    if config.api_key_env:
        key = os.environ.get(config.api_key_env)
        if not key:
            raise ConfigError(f"[engine] api_key_env = {config.api_key_env!r}: this environment variable is not set")
        headers = {"x-api-key": key} if config.wire == "anthropic" else {"Authorization": f"Bearer {key}"}
    if config.wire == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=config.connect_timeout_s, sock_read=config.silence_timeout_s
    )
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers, read_bufsize=1 << 18
    )


def _silent(replica: Replica, limit_s: float) -> EngineTimeout:
    return EngineTimeout(f"the engine at {replica.url} said nothing for {limit_s:g} s")


def _refused(replica: Replica, path: str, status: int, answer: bytes) -> EngineError:
    """What a status that is not 200 means."""
    said = answer[:_ERROR_BYTES].decode(errors="replace")
    text = f"the engine at {replica.url} answered {path} with {status}: {' '.join(said.split())[:300]}"
    if status in _BUSY:
        busy = EngineError(text)
        busy.code = "engine_busy"
        return busy
    if status >= 500:
        return EngineError(text)
    lowered = said.lower()
    if "context length" in lowered or "longer than the model" in lowered or "max_model_len" in lowered:
        return refusal(text, code="context_length_exceeded")
    return refusal(text)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
