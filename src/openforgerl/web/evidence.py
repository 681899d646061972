"""What a run left, read once and never written: progress, config, and its sessions one after the other."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from openforgerl.records import CallKind, Receipt, RecordedCall, Session, TokenRow, Use
from openforgerl.store.sqlite import Store
from openforgerl.trajectories import kinds, rows
from openforgerl.web.glossary import HELDOUT
from openforgerl.workflows.account import why_unused
from openforgerl.workflows.damage import naming_damage
from openforgerl.workflows.run_folder import RunFolder

T = TypeVar("T", Use, Receipt)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLog:
    """The agent's output: at most a head and a tail of it."""

    head: str
    tail: str
    left_out: int
    """Bytes between the two."""
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvidence:
    """Everything that is recorded of one session, and what follows from it."""

    session: Session
    uses: tuple[Use, ...]
    calls: tuple[RecordedCall, ...]
    rows: tuple[TokenRow, ...]
    kinds: Mapping[str, CallKind]
    receipts: Mapping[int, Receipt]
    """Branch -> its last receipt."""
    lost_calls: tuple[str, ...]
    """Begun, never committed."""
    log: AgentLog | None

    @property
    def phase(self) -> str:
        return self.session.labels.get("phase", "") or "no phase"

    @property
    def step(self) -> str:
        """What the session was collected for, in the words of the metrics, which count steps from 1; "" where the
        phase says it all."""
        phase, step = self.phase, self.session.labels.get("step", "")
        if phase == "sft" or not step.isdecimal():
            return ""
        if phase == "evaluation" and int(step) < len(HELDOUT):
            return f"held-out, {tuple(HELDOUT.values())[int(step)]}"
        return f"{phase} {int(step) + 1}"

    @property
    def unused_for(self) -> str:
        """ "" where the session was trained."""
        return why_unused(self.session, self.uses[-1] if self.uses else None)


def read_config(run: RunFolder) -> Mapping[str, object]:
    """The tree as it was written; {} where it is missing or no TOML, for a report needs none of it."""
    try:
        return tomllib.loads(run.config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def said(config: Mapping[str, object], section: str, *keys: str) -> object:
    """A value of the tree, or None."""
    value: object = config.get(section)
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def read_sessions(run: RunFolder, store: Store, *, log_bytes: int) -> Iterator[SessionEvidence]:
    """In the order of their opening. Sessions that open meanwhile are left out."""
    uses = _by_session(store.read_uses())
    receipts = _by_session(store.read_receipts())
    for session in store.sessions():
        name = session.session_id
        calls = store.calls(name)
        with naming_damage(name):
            found, told = rows(calls), kinds(calls)
        yield SessionEvidence(
            session=session,
            uses=uses.get(name, ()),
            calls=calls,
            rows=found,
            kinds=told,
            receipts={receipt.branch: receipt for receipt in receipts.get(name, ())},
            lost_calls=store.intents(name) if session.ending is not None else (),
            log=_log(run.logs / f"{name}.log", log_bytes),
        )


def _by_session(facts: Sequence[T]) -> dict[str, tuple[T, ...]]:
    found: dict[str, list[T]] = {}
    for fact in facts:
        found.setdefault(fact.session_id, []).append(fact)
    return {name: tuple(each) for name, each in found.items()}


def _log(file: Path, most: int) -> AgentLog | None:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            if size <= most:
                return AgentLog(head=_text(stream.read(most)), tail="", left_out=0, size=size)
            head = stream.read(most // 4)
            stream.seek(size - (most - most // 4))
            tail = stream.read(most - most // 4)
    except OSError:
        return None
    return AgentLog(head=_text(head), tail=_text(tail), left_out=size - len(head) - len(tail), size=size)


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
