"""Facts as records again. What is damaged raises StoreError with its id; nothing is repaired or skipped."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from openforgerl.errors import StoreError
from openforgerl.records import (
    Delivered,
    Message,
    MessagesDelta,
    PromptDelta,
    Receipt,
    RecordedCall,
    Session,
    ToolSpec,
    Use,
)
from openforgerl.store import encoding

T = TypeVar("T")


@contextmanager
def _damage(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{what} is damaged: {error!r}") from error


def select_sessions(connection: sqlite3.Connection, session_id: str | None = None) -> tuple[Session, ...]:
    """In the order of their opening, each with its ending and its last grade."""
    rows = connection.execute(
        """SELECT s.session_id, s.body, e.body,
                  (SELECT g.body FROM grades g WHERE g.session_id = s.session_id ORDER BY g.seq DESC LIMIT 1)
           FROM sessions s LEFT JOIN endings e USING (session_id)
           WHERE ?1 IS NULL OR s.session_id = ?1 ORDER BY s.seq""",
        (session_id,),
    )
    return tuple(_session(*row) for row in rows)


def _session(session_id: str, body: bytes, ending: bytes | None, grade: bytes | None) -> Session:
    with _damage(f"session {session_id}"):
        return encoding.session_from_json(
            session_id,
            body,
            encoding.ending_from_json(ending) if ending is not None else None,
            encoding.grade_from_json(grade) if grade is not None else None,
        )


def select_calls(connection: sqlite3.Connection, session_id: str) -> tuple[RecordedCall, ...]:
    """In the order of sampling, each with the last fact about its delivery."""
    delivered = {
        call_id: Delivered(state=state, count=count)
        for call_id, state, count in connection.execute(
            "SELECT call_id, state, count FROM deliveries WHERE session_id = ? ORDER BY seq", (session_id,)
        )
    }
    contents = _Contents(connection)
    rows = connection.execute("SELECT * FROM calls WHERE session_id = ? ORDER BY call_index", (session_id,))
    return tuple(_call(contents, delivered.get(row[1]), *row) for row in rows)


class _Contents:
    """Messages and tool lists by hash, each read, checked and decoded once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._messages: dict[bytes, Message] = {}
        self._tools: dict[bytes, tuple[ToolSpec, ...]] = {}

    def message(self, name: bytes) -> Message:
        return self._get(self._messages, encoding.message_from_json, name)

    def tools(self, name: bytes) -> tuple[ToolSpec, ...]:
        return self._get(self._tools, encoding.tools_from_json, name)

    def _get(self, known: dict[bytes, T], decode: Callable[[bytes], T], name: bytes) -> T:
        if name not in known:
            found = self._connection.execute("SELECT body FROM contents WHERE hash = ?", (name,)).fetchone()
            if found is None or encoding.content_hash(found[0]) != name:
                raise ValueError(f"content {name.hex()} is missing or changed")
            known[name] = decode(found[0])
        return known[name]


def _call(contents: _Contents, delivered: Delivered | None, *row: Any) -> RecordedCall:
    *columns, stored = row
    session_id, call_id, index, parent, cut, new_ids, *rest = columns
    messages_parent, messages_cut, messages_new, tools, answer, sampled, logprobs, body = rest
    with _damage(f"call {call_id} of session {session_id}"):
        if encoding.checksum(*columns) != stored:
            raise ValueError("its checksum differs")
        fields = encoding.call_fields(body)
        if delivered is not None:
            fields["delivered"] = delivered
        hashes = [messages_new[at : at + encoding.HASH_SIZE] for at in range(0, len(messages_new), encoding.HASH_SIZE)]
        new = tuple(contents.message(name) for name in hashes)
        return RecordedCall(
            session_id=session_id,
            call_id=call_id,
            index=index,
            prompt=PromptDelta(parent=parent, cut=cut, new_ids=encoding.ids_from_blob(new_ids)),
            messages=MessagesDelta(parent=messages_parent, cut=messages_cut, new=new),
            tools=contents.tools(tools),
            answer=contents.message(answer),
            sampled_ids=encoding.ids_from_blob(sampled),
            logprobs=encoding.logprobs_from_blob(logprobs, len(sampled) // encoding.ID_SIZE),
            **fields,
        )


def select_image(connection: sqlite3.Connection, sha256: str) -> bytes:
    with _damage(f"image {sha256[:12]}"):
        digest = bytes.fromhex(sha256)
        found = connection.execute("SELECT body FROM images WHERE sha256 = ?", (digest,)).fetchone()
        if found is None or hashlib.sha256(found[0]).digest() != digest:
            raise ValueError("it is missing or changed")
        return bytes(found[0])


def select_open_intents(connection: sqlite3.Connection, session_id: str) -> tuple[str, ...]:
    rows = connection.execute(
        """SELECT call_id FROM intents i WHERE session_id = ? AND NOT EXISTS
           (SELECT 1 FROM calls c WHERE c.session_id = i.session_id AND c.call_id = i.call_id) ORDER BY seq""",
        (session_id,),
    )
    return tuple(call_id for (call_id,) in rows)


def select_receipts(connection: sqlite3.Connection, session_id: str | None) -> tuple[Receipt, ...]:
    rows = connection.execute(
        """SELECT session_id, branch, policy_version, tokens, max_gap, mean_gap FROM receipts
           WHERE ?1 IS NULL OR session_id = ?1 ORDER BY seq""",
        (session_id,),
    )
    names = ("session_id", "branch", "policy_version", "tokens", "max_gap", "mean_gap")
    return tuple(Receipt(**dict(zip(names, row, strict=True))) for row in rows)


def select_uses(connection: sqlite3.Connection, session_id: str | None) -> tuple[Use, ...]:
    rows = connection.execute(
        """SELECT session_id, phase, step, trained, reason FROM uses
           WHERE ?1 IS NULL OR session_id = ?1 ORDER BY seq""",
        (session_id,),
    )
    return tuple(
        Use(session_id=owner, phase=phase, step=step, trained=bool(trained), reason=reason)
        for owner, phase, step, trained, reason in rows
    )
