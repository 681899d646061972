"""The store: what a proxy recorded, append-only, in one SQLite file (WAL) that one process writes and any may read.

A call is in the store, whole and synced, before `commit` returns; after kill -9 everything acknowledged is there.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from openforgerl.errors import StoreError
from openforgerl.records import (
    Delivered,
    Ending,
    Grade,
    HarnessCall,
    Receipt,
    RecordedCall,
    Session,
    Use,
)
from openforgerl.store import facts, reading
from openforgerl.store.lock import FolderLock
from openforgerl.store.schema import SCHEMA_VERSION, check_not_newer, migrate, read_version
from openforgerl.store.writer import Apply, Writer

T = TypeVar("T")

FILE = "calls.sqlite"


class Store:
    """Writes are awaited; reads are plain calls, from any thread.

    Every method raises StoreError. A write whose caller is cancelled is made nevertheless.
    """

    def __init__(
        self, folder: Path, reader: sqlite3.Connection, writer: Writer | None, lock: FolderLock | None
    ) -> None:
        self.folder = folder
        self._reader = reader
        self._reading = threading.Lock()
        self._writer = writer
        self._lock = lock

    @classmethod
    def open(cls, folder: Path, *, create: bool = True, read_only: bool = False) -> Store:
        """`read_only` works beside a live writer and after a crash, and never makes a store."""
        if not (folder / FILE).exists() and (read_only or not create):
            raise StoreError(f"no store in {folder}: {FILE} is missing")
        try:
            return cls._open_read_only(folder) if read_only else cls._open_for_writing(folder)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"store {folder}: {error}") from error

    @classmethod
    def _open_read_only(cls, folder: Path) -> Store:
        with ExitStack() as failed:
            reader = failed.enter_context(closing(_connect_read_only(folder / FILE)))
            version = read_version(reader)
            check_not_newer(version, str(folder))
            if version < SCHEMA_VERSION:
                raise StoreError(
                    f"store {folder} has schema_version {version}, not {SCHEMA_VERSION}: open it once to write"
                )
            failed.pop_all()
        return cls(folder, reader, None, None)

    @classmethod
    def _open_for_writing(cls, folder: Path) -> Store:
        _make_folder(folder)
        with ExitStack() as failed:
            lock = failed.enter_context(closing(FolderLock(folder)))
            connection = failed.enter_context(closing(_connect(folder / FILE)))
            connection.execute("PRAGMA journal_mode = WAL")
            migrate(connection, str(folder))
            reader = failed.enter_context(closing(_connect(folder / FILE)))
            reader.execute("PRAGMA query_only = ON")
            failed.pop_all()
        return cls(folder, reader, Writer(connection, str(folder)), lock)

    @property
    def counters(self) -> Mapping[str, int]:
        """Writes, transactions and failures since it was opened."""
        return dict(self._writer.counters) if self._writer else {}

    async def open_session(self, session: Session) -> None:
        """Durable. A session id is used once; ending and grade come later."""
        await self._write(partial(facts.insert_session, session=session))

    async def intent(self, call: HarnessCall) -> None:
        """Unsynced: it survives the end of the process, and a crash of the machine once a commit followed."""
        await self._write(partial(facts.insert_intent, call=call), durable=False)

    async def commit(self, call: RecordedCall, images: Mapping[str, bytes] | None = None) -> None:
        """Durable on return, with the bytes of its images, by sha256, that are not in the store yet.

        On StoreError nothing of the call was acknowledged, and the store stays usable.
        """
        await self._write(partial(facts.insert_call, call=call, images=images or {}))

    async def deliver(self, session_id: str, call_id: str, delivered: Delivered) -> None:
        """Unsynced; the last fact about a call counts."""
        insert = partial(facts.insert_delivery, session_id=session_id, call_id=call_id, delivered=delivered)
        await self._write(insert, durable=False)

    async def seal(self, session_id: str, ending: Ending) -> None:
        """Durable, once (the same ending again is no error). From now on only late calls are recorded."""
        await self._write(partial(facts.insert_ending, session_id=session_id, ending=ending))

    async def grade(self, session_id: str, grade: Grade) -> None:
        """Durable; the last grade counts."""
        await self._write(partial(facts.insert_grade, session_id=session_id, grade=grade))

    async def receipts(self, receipts: Sequence[Receipt]) -> None:
        """Durable, all or none."""

        def insert(connection: sqlite3.Connection) -> None:
            for receipt in receipts:
                facts.insert_receipt(connection, receipt)

        await self._write(insert)

    async def uses(self, uses: Sequence[Use]) -> None:
        """Durable, all or none; the last use of a session counts."""

        def insert(connection: sqlite3.Connection) -> None:
            for use in uses:
                facts.insert_use(connection, use)

        await self._write(insert)

    def session(self, session_id: str) -> Session:
        found = self._read(partial(reading.select_sessions, session_id=session_id))
        if not found:
            raise StoreError(f"session {session_id} is not in store {self.folder}")
        return found[0]

    def sessions(self) -> tuple[Session, ...]:
        """In the order of their opening, with ending and last grade."""
        return self._read(reading.select_sessions)

    def calls(self, session_id: str) -> tuple[RecordedCall, ...]:
        """In index order, with the last delivered state."""
        return self._read(partial(reading.select_calls, session_id=session_id))

    def image(self, sha256: str) -> bytes:
        """The exact bytes of an image, checked."""
        return self._read(partial(reading.select_image, sha256=sha256))

    def intents(self, session_id: str) -> tuple[str, ...]:
        """Ids of calls that began and were never committed, in the order of their arrival."""
        return self._read(partial(reading.select_open_intents, session_id=session_id))

    def read_receipts(self, session_id: str | None = None) -> tuple[Receipt, ...]:
        """In the order of writing, of one session or of all."""
        return self._read(partial(reading.select_receipts, session_id=session_id))

    def read_uses(self, session_id: str | None = None) -> tuple[Use, ...]:
        """In the order of writing, of one session or of all."""
        return self._read(partial(reading.select_uses, session_id=session_id))

    def close(self) -> None:
        """Write what is queued and let the folder go; may be called twice."""
        if self._writer is not None:
            self._writer.close()
        with self._reading:
            self._reader.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def aclose(self) -> None:
        await asyncio.shield(asyncio.to_thread(self.close))

    async def _write(self, apply: Apply, *, durable: bool = True) -> None:
        if self._writer is None:
            raise StoreError(f"store {self.folder} is open read-only")
        await self._writer.submit(apply, durable=durable)

    def _read(self, select: Callable[[sqlite3.Connection], T]) -> T:
        """In one read transaction, so that what is read fits together."""
        with self._reading:
            try:
                self._reader.execute("BEGIN")
                try:
                    return select(self._reader)
                finally:
                    self._reader.rollback()
            except sqlite3.Error as error:
                raise StoreError(f"store {self.folder}: {error}") from error


def _connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0, uri=uri)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """On a medium that cannot be written SQLite cannot share a log; without one the file alone is the store."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    log = path.with_name(f"{path.name}-wal")
    if not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size):
        uri += "&immutable=1"
    return _connect(uri, uri=True)


def _make_folder(folder: Path) -> None:
    """With its entry in the parent folder synced: a synced file in a folder that is lost is lost."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
