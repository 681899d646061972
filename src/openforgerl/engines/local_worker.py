"""The one thread that computes: it owns model and batch, and takes everything from its inbox between two steps.

Whatever fails in a step fails the calls in flight, not the engine. If the thread itself ends, every call ends too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openforgerl.engines.local_batch import Batch, Row, aborted
from openforgerl.engines.local_config import LocalEngineConfig
from openforgerl.engines.local_model import PolicyModel
from openforgerl.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """New weights, their version, and until when (monotonic clock) calls in flight may end with the old ones."""

    state: Mapping[str, Tensor]
    policy_version: int
    drain_until: float
    done: Future[None] = field(default_factory=Future)


class Stop:
    """Ends the thread."""


class Wake:
    """Makes it look at its calls: one was cancelled."""


Message = Row | WeightUpdate | Stop | Wake


class Worker:
    """`post` is safe from any thread; everything else here runs in the worker's own."""

    def __init__(self, model: PolicyModel, config: LocalEngineConfig, policy_version: int) -> None:
        self._model = model
        self._config = config
        self.batch = Batch(model, config, policy_version)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._updates: list[WeightUpdate] = []
        self._lock = threading.Lock()
        self._ended = False
        self._stopping = False
        # A daemon: a process that forgets to close its engine can still end.
        self._thread = threading.Thread(target=self._main, name="openforgerl-engine", daemon=True)
        self._thread.start()

    def post(self, message: Message) -> None:
        """Raises EngineError once the thread has ended: nobody would ever read the message."""
        with self._lock:
            if self._ended:
                raise EngineError("the engine is closed")
            self._inbox.put(message)

    def join(self, timeout_s: float) -> bool:
        """True if the thread has ended within the deadline."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        reason = "the engine failed"
        try:
            if self._config.threads is not None:
                torch.set_num_threads(self._config.threads)
            with torch.inference_mode():
                while not self._stopping:
                    self._turn()
            reason = "the engine was closed"
        finally:
            self._end(reason)

    def _turn(self) -> None:
        self._read_inbox()
        if self._stopping:
            return
        self._apply_updates()
        try:
            self.batch.step(admit=not self._updates)
        except Exception as error:  # boundary: a step's failure belongs to its calls
            self.batch.fail(EngineError(f"the local engine failed: {type(error).__name__}: {error}"), waiting=False)

    def _read_inbox(self) -> None:
        """Take all messages; without work, wait for the first."""
        busy = bool(self.batch.rows or self.batch.waiting or self._updates)
        try:
            self._take(self._inbox.get(block=not busy))
            while True:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _take(self, message: Message) -> None:
        match message:
            case Row():
                self.batch.waiting.append(message)
            case WeightUpdate():
                self._updates.append(message)
            case Stop():
                self._stopping = True
            case Wake():
                pass

    def _apply_updates(self) -> None:
        """Once no call is in flight, or the first update's patience is over, in order."""
        while self._updates and (not self.batch.rows or time.monotonic() >= self._updates[0].drain_until):
            update = self._updates.pop(0)
            if not update.done.set_running_or_notify_cancel():
                continue
            try:
                self._model.check_state(update.state)
                self._model.set_state(update.state)
            except Exception as error:  # boundary: an update's failure belongs to its caller
                update.done.set_exception(_as_engine_error(error))
                continue
            self.batch.renew(update.policy_version)
            self.batch.counters["updates"] += 1
            update.done.set_result(None)

    def _end(self, reason: str) -> None:
        with self._lock:
            self._ended = True
        while True:
            try:
                self._take(self._inbox.get_nowait())
            except queue.Empty:
                break
        self.batch.fail(aborted(reason), waiting=True)
        for update in self._updates:
            if update.done.set_running_or_notify_cancel():
                update.done.set_exception(EngineError(f"the weights were not loaded: {reason}"))


def _as_engine_error(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    return EngineError(f"the weights could not be set: {type(error).__name__}: {error}")
