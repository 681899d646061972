"""What an interrupted run left in the store: finished rollouts to take up, open sessions to seal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openforgerl.records import EndedBy, Ending, Session
from openforgerl.rollout.attempt import RolloutRequest
from openforgerl.store.sqlite import Store


class Attempts:
    """The attempts of this run so far, by rollout."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def split(self, requests: Sequence[RolloutRequest]) -> tuple[list[Session], list[RolloutRequest]]:
        """Rollouts that are finished under the same policy version, and requests for the others."""
        by_rollout: dict[str, list[Session]] = {}
        for session in self._store.sessions():
            by_rollout.setdefault(session.rollout_id, []).append(session)
        found, missing = [], []
        for request in requests:
            earlier = by_rollout.get(request.rollout_id, [])
            finished = [session for session in earlier if _counts(session, request)]
            if finished:
                found.append(finished[0])
            else:
                attempt = max((session.attempt for session in earlier), default=-1) + 1
                missing.append(replace(request, first_attempt=attempt))
        return found, missing


def _counts(session: Session, request: RolloutRequest) -> bool:
    ended_itself = session.ending is not None and session.ending.ended_by not in (EndedBy.INFRA, EndedBy.CANCELLED)
    same = session.task_id == request.task.task_id and dict(session.labels) == dict(request.labels)
    return ended_itself and session.grade is not None and same


async def seal_open_sessions(store: Store) -> int:
    """Sessions that a crash left open end as infrastructure failures; their number."""
    left = [session for session in store.sessions() if session.ending is None]
    for session in left:
        await store.seal(session.session_id, Ending(ended_by=EndedBy.INFRA, reason="the orchestrator was killed"))
    return len(left)
