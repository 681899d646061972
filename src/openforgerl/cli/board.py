"""TensorBoard files of a training: every number of every step, beside metrics.jsonl. Imported late: it is slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from openforgerl.records import Session
from openforgerl.workflows.listener import Listener


class Board:
    """A Listener before another one. The x axis is the policy version, so that a resumed run's files fit together."""

    def __init__(
        self, folder: Path, following: Listener, policy_version: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._writer = EventFileWriter(str(folder))
        self._following = following
        self._policy_version = policy_version
        self._clock = clock

    def phase(self, name: str, rollouts: int) -> None:
        self._following.phase(name, rollouts)

    def attempt(self, session: Session) -> None:
        self._following.attempt(session)

    def step(self, name: str, metrics: Mapping[str, float | int | str]) -> None:
        self._policy_version = int(metrics.get("policy_version", self._policy_version))
        numbers = {key: float(value) for key, value in metrics.items() if not isinstance(value, str)}
        values = [Summary.Value(tag=f"{name.split()[0]}/{key}", simple_value=value) for key, value in numbers.items()]
        event = Event(wall_time=self._clock(), step=self._policy_version, summary=Summary(value=values))
        self._writer.add_event(event)
        self._writer.flush()
        self._following.step(name, metrics)

    def close(self) -> None:
        self._writer.close()
