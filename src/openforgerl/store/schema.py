"""The tables of a store, and how an older store becomes this one.

Every table holds facts: rows are inserted, never changed or removed (triggers see to it). What can be derived is not
stored. `MIGRATIONS[n]` leads from schema version n to n + 1 and is never edited once released.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from openforgerl.errors import StoreError

_FACTS = (
    "schema_version", "sessions", "endings", "grades", "intents", "contents", "calls", "deliveries", "receipts", "uses",
)  # fmt: skip

_FIRST = (
    "CREATE TABLE schema_version (version INTEGER PRIMARY KEY) STRICT",
    "CREATE TABLE sessions (seq INTEGER PRIMARY KEY, session_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL) STRICT",
    "CREATE TABLE endings (session_id TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT",
    "CREATE TABLE grades (seq INTEGER PRIMARY KEY, session_id TEXT NOT NULL, body BLOB NOT NULL) STRICT",
    "CREATE INDEX grades_of ON grades (session_id)",
    """CREATE TABLE intents (seq INTEGER PRIMARY KEY, session_id TEXT NOT NULL, call_id TEXT NOT NULL,
       body BLOB NOT NULL, UNIQUE (session_id, call_id)) STRICT""",
    # Messages and tool lists, once each: `hash` is the blake2b of `body`.
    "CREATE TABLE contents (hash BLOB NOT NULL UNIQUE, body BLOB NOT NULL) STRICT",
    # Ids are int32 little-endian; log-probs float32 or float64; messages_new is a run of content hashes.
    """CREATE TABLE calls (
       session_id TEXT NOT NULL, call_id TEXT NOT NULL, call_index INTEGER NOT NULL,
       prompt_parent TEXT, prompt_cut INTEGER NOT NULL, prompt_new BLOB NOT NULL,
       messages_parent TEXT, messages_cut INTEGER NOT NULL, messages_new BLOB NOT NULL,
       tools BLOB NOT NULL, answer BLOB NOT NULL, sampled_ids BLOB NOT NULL, logprobs BLOB NOT NULL,
       body BLOB NOT NULL, checksum BLOB NOT NULL,
       UNIQUE (session_id, call_index), UNIQUE (session_id, call_id)) STRICT""",
    """CREATE TABLE deliveries (seq INTEGER PRIMARY KEY, session_id TEXT NOT NULL, call_id TEXT NOT NULL,
       state TEXT NOT NULL, count INTEGER NOT NULL) STRICT""",
    "CREATE INDEX deliveries_of ON deliveries (session_id)",
    """CREATE TABLE receipts (seq INTEGER PRIMARY KEY, session_id TEXT NOT NULL, branch INTEGER NOT NULL,
       policy_version INTEGER NOT NULL, tokens INTEGER NOT NULL,
       max_gap REAL NOT NULL, mean_gap REAL NOT NULL) STRICT""",
    "CREATE INDEX receipts_of ON receipts (session_id)",
    """CREATE TABLE uses (seq INTEGER PRIMARY KEY, session_id TEXT NOT NULL, phase TEXT NOT NULL,
       step INTEGER NOT NULL, trained INTEGER NOT NULL, reason TEXT NOT NULL) STRICT""",
    "CREATE INDEX uses_of ON uses (session_id)",
    *(
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in _FACTS
        for verb in ("UPDATE", "DELETE")
    ),
)

_IMAGES = (
    "CREATE TABLE images (sha256 BLOB NOT NULL UNIQUE, body BLOB NOT NULL) STRICT",
    *(
        f"CREATE TRIGGER images_{verb.lower()} BEFORE {verb} ON images "
        "BEGIN SELECT RAISE(ABORT, 'images is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ),
)
"""The exact bytes of images, once each."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _IMAGES)
SCHEMA_VERSION = len(MIGRATIONS)


def read_version(connection: sqlite3.Connection) -> int:
    """0 for a file without a schema."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'").fetchone()
    if known is None:
        return 0
    (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection, folder: str, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Make a store current, one transaction a step. Raises StoreError for a store of a newer program."""
    version = read_version(connection)
    check_not_newer(version, folder, len(migrations))
    for number in range(version, len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in migrations[number]:
                connection.execute(statement)
            connection.execute("INSERT INTO schema_version VALUES (?)", (number + 1,))
            connection.execute("COMMIT")
        except sqlite3.Error:
            connection.rollback()
            raise


def check_not_newer(version: int, folder: str, known: int = SCHEMA_VERSION) -> None:
    if version > known:
        raise StoreError(
            f"store {folder} has schema_version {version}, this program knows up to {known}: use a newer one"
        )
