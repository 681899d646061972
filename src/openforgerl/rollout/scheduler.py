"""Many rollouts: a limit on how many run at once, and capped retries of infrastructure failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from openforgerl.records import EndedBy, Session
from openforgerl.rollout.attempt import RolloutRequest, World, run_attempt
from openforgerl.rollout.config import RolloutConfig


class Scheduler:
    """Owns the slots; every rollout that it is given ends, or is cancelled with it."""

    def __init__(self, world: World, config: RolloutConfig) -> None:
        self._world = world
        self._config = config
        self._slots = asyncio.Semaphore(config.concurrency)

    async def collect(
        self, requests: Sequence[RolloutRequest], on_attempt: Callable[[Session], None] = lambda session: None
    ) -> tuple[Session, ...]:
        """The last attempt of every rollout, in the order of `requests`; `on_attempt` sees every attempt as it ends."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._rollout(request, on_attempt)) for request in requests]
        return tuple(task.result() for task in tasks)

    async def _rollout(self, request: RolloutRequest, on_attempt: Callable[[Session], None]) -> Session:
        last = request.first_attempt + self._config.infra_retries
        for attempt in range(request.first_attempt, last + 1):
            async with self._slots:
                session = await run_attempt(self._world, self._config, request, attempt)
            on_attempt(session)
            if session.ending is None or session.ending.ended_by is not EndedBy.INFRA:
                break
        return session
