"""Each fact's insertion, inside a transaction of the writer. Raises StoreError that names what does not fit."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence

from openforgerl.errors import StoreError
from openforgerl.records import (
    Completion,
    Delivered,
    Ending,
    Grade,
    HarnessCall,
    Receipt,
    RecordedCall,
    Session,
    Use,
)
from openforgerl.store import encoding


def insert_session(connection: sqlite3.Connection, session: Session) -> None:
    if session.ending is not None or session.grade is not None:
        raise StoreError(
            f"session {session.session_id} is opened without an ending and a grade: seal and grade it later"
        )
    if _exists(connection, session.session_id):
        raise StoreError(f"session {session.session_id} exists: a session id is used once")
    row = (session.session_id, encoding.session_to_json(session))
    connection.execute("INSERT INTO sessions (session_id, body) VALUES (?, ?)", row)


def insert_intent(connection: sqlite3.Connection, call: HarnessCall) -> None:
    _need_session(connection, call.session_id)
    row = (call.session_id, call.call_id, encoding.intent_to_json(call))
    connection.execute("INSERT INTO intents (session_id, call_id, body) VALUES (?, ?, ?)", row)


def insert_call(connection: sqlite3.Connection, call: RecordedCall, images: Mapping[str, bytes]) -> None:
    """`images`: bytes by sha256 of the call's images; those that the store has may be left out."""
    _need_open(connection, call)
    _check_parents(connection, call)
    _insert_images(connection, call, images)
    new = [encoding.message_to_json(message) for message in call.messages.new]
    hashes = _insert_contents(
        connection, [encoding.tools_to_json(call.tools), encoding.message_to_json(call.answer), *new]
    )
    row = (
        call.session_id, call.call_id, call.index,
        call.prompt.parent, call.prompt.cut, encoding.ids_to_blob(call.prompt.new_ids),
        call.messages.parent, call.messages.cut, b"".join(hashes[2:]), hashes[0], hashes[1],
        encoding.ids_to_blob(call.sampled_ids), encoding.logprobs_to_blob(call.logprobs), encoding.call_to_json(call),
    )  # fmt: skip
    places = ", ".join("?" * (len(row) + 1))
    try:
        connection.execute(f"INSERT INTO calls VALUES ({places})", (*row, encoding.checksum(*row)))
    except sqlite3.IntegrityError:
        _check_place(connection, call)
        raise


def insert_delivery(connection: sqlite3.Connection, session_id: str, call_id: str, delivered: Delivered) -> None:
    found = connection.execute(
        "SELECT length(sampled_ids) FROM calls WHERE session_id = ? AND call_id = ?", (session_id, call_id)
    ).fetchone()
    if found is None:
        raise StoreError(f"call {call_id} of session {session_id} is not in the store: it cannot have been delivered")
    if _ending(connection, session_id) is not None:
        raise StoreError(f"call {call_id}: session {session_id} is sealed, what was delivered of its calls stays")
    if not 0 <= delivered.count <= found[0] // encoding.ID_SIZE:
        raise StoreError(
            f"call {call_id} has {found[0] // encoding.ID_SIZE} ids, {delivered.count} cannot be delivered"
        )
    row = (session_id, call_id, delivered.state, delivered.count)
    connection.execute("INSERT INTO deliveries (session_id, call_id, state, count) VALUES (?, ?, ?, ?)", row)


def insert_ending(connection: sqlite3.Connection, session_id: str, ending: Ending) -> None:
    """Once; the same ending again is no new fact."""
    _need_session(connection, session_id)
    body = encoding.ending_to_json(ending)
    known = _ending(connection, session_id)
    if known is None:
        connection.execute("INSERT INTO endings VALUES (?, ?)", (session_id, body))
    elif encoding.ending_from_json(known) != ending:
        raise StoreError(f"session {session_id} ended as {known.decode(errors='replace')}, not as {ending}")


def insert_grade(connection: sqlite3.Connection, session_id: str, grade: Grade) -> None:
    _need_session(connection, session_id)
    row = (session_id, encoding.grade_to_json(grade))
    connection.execute("INSERT INTO grades (session_id, body) VALUES (?, ?)", row)


def insert_receipt(connection: sqlite3.Connection, receipt: Receipt) -> None:
    _need_session(connection, receipt.session_id)
    row = (
        receipt.session_id, receipt.branch, receipt.policy_version, receipt.tokens, receipt.max_gap, receipt.mean_gap,
    )  # fmt: skip
    connection.execute(
        """INSERT INTO receipts (session_id, branch, policy_version, tokens, max_gap, mean_gap)
           VALUES (?, ?, ?, ?, ?, ?)""",
        row,
    )


def insert_use(connection: sqlite3.Connection, use: Use) -> None:
    _need_session(connection, use.session_id)
    row = (use.session_id, use.phase, use.step, use.trained, use.reason)
    connection.execute("INSERT INTO uses (session_id, phase, step, trained, reason) VALUES (?, ?, ?, ?, ?)", row)


def _exists(connection: sqlite3.Connection, session_id: str) -> bool:
    return connection.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,)).fetchone() is not None


def _need_session(connection: sqlite3.Connection, session_id: str) -> None:
    if not _exists(connection, session_id):
        raise _not_opened(session_id)


def _not_opened(session_id: str) -> StoreError:
    return StoreError(f"session {session_id} is not in the store: open it first")


def _ending(connection: sqlite3.Connection, session_id: str) -> bytes | None:
    found = connection.execute("SELECT body FROM endings WHERE session_id = ?", (session_id,)).fetchone()
    return found[0] if found else None


def _insert_contents(connection: sqlite3.Connection, bodies: Sequence[bytes]) -> list[bytes]:
    """Their hashes."""
    hashes = [encoding.content_hash(body) for body in bodies]
    rows = zip(hashes, bodies, strict=True)
    connection.executemany("INSERT INTO contents VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
    return hashes


def _insert_images(connection: sqlite3.Connection, call: RecordedCall, images: Mapping[str, bytes]) -> None:
    for name in dict.fromkeys(image.sha256 for image in call.images):
        digest = bytes.fromhex(name)
        if connection.execute("SELECT 1 FROM images WHERE sha256 = ?", (digest,)).fetchone() is not None:
            continue
        if hashlib.sha256(images.get(name, b"")).digest() != digest:
            raise StoreError(f"call {call.call_id}: the bytes of image {name[:12]} are missing or others")
        connection.execute("INSERT INTO images VALUES (?, ?)", (digest, images[name]))


def _need_open(connection: sqlite3.Connection, call: RecordedCall) -> None:
    """Its session takes it."""
    found = connection.execute(
        "SELECT endings.session_id FROM sessions LEFT JOIN endings USING (session_id) WHERE sessions.session_id = ?",
        (call.session_id,),
    ).fetchone()
    if found is None:
        raise _not_opened(call.session_id)
    if found[0] is not None and call.completion is not Completion.LATE:
        raise StoreError(f"call {call.call_id}: session {call.session_id} is sealed, only a late call is recorded")


def _check_place(connection: sqlite3.Connection, call: RecordedCall) -> None:
    taken = connection.execute(
        "SELECT call_id, call_index FROM calls WHERE session_id = ? AND (call_index = ? OR call_id = ?)",
        (call.session_id, call.index, call.call_id),
    ).fetchone()
    if taken is not None:
        raise StoreError(
            f"call {call.call_id} (index {call.index}) of session {call.session_id}: "
            f"call {taken[0]} (index {taken[1]}) is already committed"
        )


def _check_parents(connection: sqlite3.Connection, call: RecordedCall) -> None:
    """What a delta leans on is an earlier call in the store, and long enough: else it could never be read."""
    prompt, messages = call.prompt, call.messages
    limits = _lengths(connection, call, prompt.parent, "prompt")
    message_limits = limits
    if messages.parent != prompt.parent:
        message_limits = _lengths(connection, call, messages.parent, "messages")
    for name, delta, limit in (("prompt", prompt, limits[0]), ("messages", messages, message_limits[1])):
        if not 0 <= delta.cut <= limit:
            raise StoreError(
                f"call {call.call_id}: its {name} take {delta.cut} from call {delta.parent}, which has {limit}"
            )


def _lengths(connection: sqlite3.Connection, call: RecordedCall, parent: str | None, name: str) -> tuple[int, int]:
    """Ids and messages of a parent. Raises StoreError where it is no earlier call."""
    if parent is None:
        return 0, 0
    found = connection.execute(
        """SELECT call_index, prompt_cut, length(prompt_new) + length(sampled_ids), messages_cut, length(messages_new)
           FROM calls WHERE session_id = ? AND call_id = ?""",
        (call.session_id, parent),
    ).fetchone()
    if found is None or found[0] >= call.index:
        raise StoreError(
            f"call {call.call_id}: the parent of its {name}, call {parent}, is no earlier call in the store"
        )
    _, prompt_cut, id_bytes, messages_cut, hash_bytes = found
    ids = int(prompt_cut) + int(id_bytes) // encoding.ID_SIZE
    return ids, int(messages_cut) + int(hash_bytes) // encoding.HASH_SIZE
