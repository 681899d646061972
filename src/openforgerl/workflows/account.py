"""Where every sampled token of a run went: sampled = trained + masked + unused, the last two by named reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from openforgerl.records import Session, Use
from openforgerl.store.sqlite import Store
from openforgerl.trajectories import accounting, rows
from openforgerl.workflows.damage import naming_damage


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAccount:
    """In sampled tokens."""

    sampled: int
    trained: int
    masked: Mapping[str, int]
    """By MaskReason; a masked token is counted here whether its session was trained or not."""
    unused: Mapping[str, int]
    """Tokens with mask 1 in rows that were not trained, by the reason of their session's use."""

    @property
    def balanced(self) -> bool:
        return self.sampled == self.trained + sum(self.masked.values()) + sum(self.unused.values())


def token_account(store: Store) -> TokenAccount:
    """Over every session of the run."""
    uses = {use.session_id: use for use in store.read_uses()}
    sampled, trained = 0, 0
    masked: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    for session in store.sessions():
        calls = store.calls(session.session_id)
        with naming_damage(session.session_id):
            tokens = accounting(calls, rows(calls))
        sampled += tokens.sampled
        masked.update({str(reason): count for reason, count in tokens.masked.items()})
        reason = why_unused(session, uses.get(session.session_id))
        if reason:
            unused[reason] += tokens.trained_mask
        else:
            trained += tokens.trained_mask
    return TokenAccount(
        sampled=sampled,
        trained=trained,
        masked={reason: count for reason, count in masked.items() if count},
        unused={reason: count for reason, count in unused.items() if count},
    )


def why_unused(session: Session, use: Use | None) -> str:
    """ "" where the session was trained."""
    if use is not None:
        return use.reason
    return "open" if session.ending is None else "not_yet_used"
