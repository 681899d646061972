"""Calls that are at the engine, and the door before them that a weight update closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from openforgerl.errors import EngineError

_LANDING_S = 10.0
"""An interrupted call ends at once; more is a fault."""


class Flight:
    """One request to the engine. A call whose flight was interrupted takes another, from where it was."""

    def __init__(self) -> None:
        self.interrupted = False
        self._stop: Callable[[], None] | None = None

    @contextmanager
    def stoppable(self, stop: Callable[[], None]) -> Iterator[None]:
        """Inside, `stop` is what makes the flight end."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def interrupt(self) -> None:
        self.interrupted = True
        if self._stop is not None:
            self._stop()


class Flights:
    """All of one engine."""

    def __init__(self) -> None:
        self._flying: set[Flight] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._none = asyncio.Event()
        self._none.set()

    @asynccontextmanager
    async def flight(self) -> AsyncIterator[Flight]:
        """Waits while an update is made."""
        await self._open.wait()
        flight = Flight()
        self._flying.add(flight)
        self._none.clear()
        try:
            yield flight
        finally:
            self._flying.discard(flight)
            if not self._flying:
                self._none.set()

    @asynccontextmanager
    async def grounded(self, drain_s: float) -> AsyncIterator[int]:
        """Inside, nothing flies. What has not landed by itself within `drain_s` is interrupted: so many were.

        Raises EngineError where a flight does not end.
        """
        self._open.clear()
        try:
            await self._landed(drain_s)
            late = tuple(self._flying)
            for flight in late:
                flight.interrupt()
            if not await self._landed(_LANDING_S):
                raise EngineError(f"{len(self._flying)} calls did not leave the engine within {_LANDING_S:g} s")
            yield len(late)
        finally:
            self._open.set()

    async def _landed(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._none.wait()
        except TimeoutError:
            pass
        return self._none.is_set()
