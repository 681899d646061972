"""What an interrupted run left in the store: finished rollouts to take up, open sessions to seal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openforgerl.records import EndedBy, Ending, Grade, Session, Use
from openforgerl.rollout.attempt import RolloutRequest
from openforgerl.store.sqlite import Store
from openforgerl.workflows.run_folder import Progress, RunFolder


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
    graded = session.grade is not None and session.grade.reason != "infra"
    return ended_itself and graded and same


async def recover(run: RunFolder, progress: Progress, store: Store) -> None:
    """Make run folder and store agree with the last commit. On a new run there is nothing to do.

    Uses of the last commit are appended again, for a crash may have come before them; the last use of a session
    counts. Sessions that a crash left open end as infrastructure failures.
    """
    evaluated = {evaluation.policy_version for evaluation in progress.evaluations.values()}
    current = frozenset({progress.policy_version})
    run.prune(checkpoints=current | evaluated, states=current)
    await store.uses([Use(**record.model_dump()) for record in progress.last_uses])
    for session in store.sessions():
        if session.ending is None:
            await store.seal(session.session_id, Ending(ended_by=EndedBy.INFRA, reason="the orchestrator was killed"))
        if session.grade is None:
            await store.grade(session.session_id, Grade(kind="ungraded", reason="infra"))
