"""The one thread that writes: what waits becomes one transaction, and its callers are released after its COMMIT.

A transaction with a durable write is synced; one of unsynced writes only is not, and becomes durable with the next
synced one (the log is synced as a whole, in order). A write that is refused leaves the others of its batch alone.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from openforgerl.errors import StoreError

_BATCH = 256
SYNCED = "FULL"
"""What SQLite calls a log that is synced at each COMMIT."""

_REFUSALS = (StoreError, sqlite3.IntegrityError, ValueError, TypeError, OverflowError)
"""What is wrong with one write, and not with the store."""

Apply = Callable[[sqlite3.Connection], None]
"""May be called again after a rollback."""


@dataclass(frozen=True, slots=True)
class _Write:
    apply: Apply
    durable: bool
    done: asyncio.Future[None]


Outcome = tuple[_Write, StoreError | None]


class Writer:
    """Owns `connection` from now on: it is used by the thread only, and closed by it."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._synced: bool | None = None
        self.counters = {"writes": 0, "transactions": 0, "synced_transactions": 0, "failed_writes": 0}
        self._thread = threading.Thread(target=self._main, name=f"store-writer {name}", daemon=True)
        self._thread.start()

    def submit(self, apply: Apply, *, durable: bool) -> asyncio.Future[None]:
        """Queue a write; the future is done after the transaction that holds it. Raises StoreError when closed.

        It is made even where the future is cancelled.
        """
        write = _Write(apply, durable, asyncio.get_running_loop().create_future())
        with self._gate:
            if self._closed:
                raise StoreError(f"store {self._name} is closed")
            self._queue.put(write)
        return write.done

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _main(self) -> None:
        going = True
        try:
            while going:
                batch, going = self._next_batch()
                if batch:
                    self._release(batch, self._run(batch))
        finally:
            self._refuse_rest()
            self._connection.close()

    def _next_batch(self) -> tuple[list[_Write], bool]:
        """Wait for a write, then take all that wait; False once the end was asked for."""
        batch: list[_Write] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) == _BATCH or self._queue.empty():
                return batch, True
            item = self._queue.get()
        return batch, False

    def _run(self, batch: Sequence[_Write]) -> list[StoreError | None]:
        connection = self._connection
        try:
            self._begin(durable=any(write.durable for write in batch))
            refused = self._apply_all(batch)
            connection.execute("COMMIT")
        except Exception as error:  # whatever it is, it is these callers' failure, and the thread lives on
            self._roll_back()
            return [StoreError(f"store {self._name}: {error}") for _ in batch]
        return refused

    def _begin(self, *, durable: bool) -> None:
        if durable is not self._synced:
            self._connection.execute(f"PRAGMA synchronous = {SYNCED if durable else 'NORMAL'}")
            self._synced = durable
        self.counters["synced_transactions"] += durable
        self._connection.execute("BEGIN IMMEDIATE")

    def _apply_all(self, batch: Sequence[_Write]) -> list[StoreError | None]:
        """Where one is refused all are applied again, each in a savepoint: those are not free, and refusals are rare.

        I/O errors are raised: they end the whole transaction.
        """
        try:
            for write in batch:
                write.apply(self._connection)
        except _REFUSALS:
            self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            return [self._apply(write.apply) for write in batch]
        return [None] * len(batch)

    def _apply(self, apply: Apply) -> StoreError | None:
        """One write in its savepoint."""
        connection = self._connection
        connection.execute("SAVEPOINT one")
        try:
            apply(connection)
        except _REFUSALS as error:
            connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
            return error if isinstance(error, StoreError) else StoreError(f"store {self._name}: {error}")
        connection.execute("RELEASE one")
        return None

    def _roll_back(self) -> None:
        """Where even this fails, the next BEGIN does too, and rolls back first."""
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _release(self, batch: Sequence[_Write], errors: Sequence[StoreError | None]) -> None:
        self.counters["transactions"] += 1
        failed = sum(error is not None for error in errors)
        self.counters["failed_writes"] += failed
        self.counters["writes"] += len(batch) - failed
        _tell(list(zip(batch, errors, strict=True)))

    def _refuse_rest(self) -> None:
        """Nobody may wait for a thread that has ended."""
        with self._gate:
            self._closed = True
        while not self._queue.empty():
            if (write := self._queue.get()) is not None:
                _tell([(write, StoreError(f"store {self._name} is closed"))])


def _tell(outcomes: Sequence[Outcome]) -> None:
    """Each event loop is woken once."""
    for loop in {write.done.get_loop() for write, _ in outcomes}:
        own = [(write, error) for write, error in outcomes if write.done.get_loop() is loop]
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(_settle, own)


def _settle(outcomes: Sequence[Outcome]) -> None:
    for write, error in outcomes:
        if write.done.done():
            continue
        if error is None:
            write.done.set_result(None)
        else:
            write.done.set_exception(error)
