"""`verify`: laws 1 and 2 over everything a run recorded, its token account, and the receipts of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openforgerl.store.sqlite import Store
from openforgerl.trajectories import check_rows, rows
from openforgerl.workflows.account import TokenAccount, token_account
from openforgerl.workflows.damage import naming_damage

MAX_GAP = 1e-4
"""The hard gate of the local engine in fp32 and sync mode: largest |engine - trainer| log-prob of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was looked at, and every breach that was found."""

    sessions: int
    calls: int
    rows: int
    sampled_rows: int
    """Rows whose log-probs an engine sampled; a scripted teacher's have no receipt."""
    checked_rows: int
    """Of these, rows with a receipt."""
    max_gap: float
    within: int
    """Checked rows with a gap of at most `MAX_GAP`."""
    tokens: TokenAccount
    findings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.findings


def verify(store: Store, *, settled_only: bool = False) -> Verdict:
    """Reads the store only. Raises StoreError for a damaged one.

    `settled_only` leaves out sessions whose step is not committed, for beside a live run their receipts are still to
    come.
    """
    settled = {use.session_id for use in store.read_uses()}  # before the receipts, which are written before the uses
    gaps = {(receipt.session_id, receipt.branch): receipt.max_gap for receipt in store.read_receipts()}
    findings: list[str] = []
    counts = {"calls": 0, "rows": 0, "sampled": 0}
    seen: list[float] = []
    sessions = [session for session in store.sessions() if not settled_only or session.session_id in settled]
    for session in sessions:
        calls = store.calls(session.session_id)
        with naming_damage(session.session_id):
            found = rows(calls)
            findings += check_rows(calls, found)
        sampled = [(session.session_id, row.branch) for row in found if row.logprob_kind == "sampled"]
        counts["calls"] += len(calls)
        counts["rows"] += len(found)
        counts["sampled"] += len(sampled)
        seen += [gaps[key] for key in sampled if key in gaps]
        findings += _gap_findings(sampled, gaps)
    tokens = token_account(store)
    if not tokens.balanced:
        findings.append(f"tokens do not add up: {tokens}")
    return Verdict(
        sessions=len(sessions),
        calls=counts["calls"],
        rows=counts["rows"],
        sampled_rows=counts["sampled"],
        checked_rows=len(seen),
        max_gap=max(seen, default=0.0),
        within=sum(gap <= MAX_GAP for gap in seen),
        tokens=tokens,
        findings=tuple(findings),
    )


def _gap_findings(keys: list[tuple[str, int]], gaps: Mapping[tuple[str, int], float]) -> list[str]:
    missing = [f"row {session}/{branch} has no receipt" for session, branch in keys if (session, branch) not in gaps]
    wide = [
        f"row {session}/{branch}: log-prob gap {gaps[session, branch]:.2e} is above {MAX_GAP:.0e}"
        for session, branch in keys
        if gaps.get((session, branch), 0.0) > MAX_GAP
    ]
    return missing + wide
