"""The last line of a training run: one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from openforgerl.records import Session
from openforgerl.store.sqlite import Store
from openforgerl.workflows.account import token_account
from openforgerl.workflows.run_folder import Progress

Json = Mapping[str, object]


def summary(progress: Progress, store: Store) -> Json:
    """{"heldout", "seconds", "rollouts": {"ended_by", "grades"}, "tokens"}."""
    sessions = store.sessions()
    tokens = token_account(store)
    heldout = {name: round(evaluation.mean_reward, 4) for name, evaluation in progress.evaluations.items()}
    return {
        "heldout": heldout,
        "seconds": {name: round(seconds, 1) for name, seconds in progress.seconds.items()},
        "rollouts": {"ended_by": _endings(sessions), "grades": _grades(sessions)},
        "tokens": {
            "sampled": tokens.sampled,
            "trained": tokens.trained,
            "masked": dict(tokens.masked),
            "unused": dict(tokens.unused),
        },
    }


def _endings(sessions: tuple[Session, ...]) -> dict[str, int]:
    return dict(Counter(str(session.ending.ended_by) if session.ending else "open" for session in sessions))


def _grades(sessions: tuple[Session, ...]) -> dict[str, int]:
    return dict(Counter(session.grade.kind if session.grade else "none" for session in sessions))
