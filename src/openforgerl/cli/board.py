"""TensorBoard files of a training: every number of every step, beside metrics.jsonl. Imported late: it is slow."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from openforgerl.records import Session
from openforgerl.workflows.listener import Listener


class Board:
    """A Listener before another one. The x axis is the policy version, so that a resumed run's files fit together.

    Written at once, by the caller's thread: TensorBoard's own writer tells a full disk by a traceback of its thread.
    """

    def __init__(
        self, folder: Path, following: Listener, policy_version: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._following = following
        self._policy_version = policy_version
        self._clock = clock
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(clock()):010d}.{socket.gethostname()}.{os.getpid()}.{policy_version}"
        self._file = folder / name
        self._stream = self._file.open("ab", buffering=0)
        self._write(Event(wall_time=clock(), file_version="brain.Event:2"))

    def phase(self, name: str, rollouts: int) -> None:
        self._following.phase(name, rollouts)

    def attempt(self, session: Session) -> None:
        self._following.attempt(session)

    def step(self, name: str, metrics: Mapping[str, float | int | str]) -> None:
        self._policy_version = int(metrics.get("policy_version", self._policy_version))
        numbers = {key: float(value) for key, value in metrics.items() if not isinstance(value, str)}
        values = [Summary.Value(tag=f"{name.split()[0]}/{key}", simple_value=value) for key, value in numbers.items()]
        event = Event(wall_time=self._clock(), step=self._policy_version, summary=Summary(value=values))
        self._write(event)
        self._following.step(name, metrics)

    def close(self) -> None:
        self._stream.close()

    def _write(self, event: Event) -> None:
        """Raises OSError that names the file."""
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        try:
            left = memoryview(record.getvalue())
            while left:
                left = left[self._stream.write(left) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._file)) from error
