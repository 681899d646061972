"""Continuous batching: waiting calls become rows, rows are prefilled, and all ready rows take one token per step.

A row is its ids; keys and values of all but the last are in its slot, and the last one is the input of the next decode
step. So a prompt that is retained whole starts decoding at once, and a row whose slot is taken from it (memory, new
weights) only has to be prefilled again. Laws: first come, first served; at most `max_tokens_in_cache` positions.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from typing import Protocol

from openforgerl.engines.local_config import LocalEngineConfig
from openforgerl.engines.local_model import PolicyModel
from openforgerl.engines.local_prefix import PrefixTree
from openforgerl.engines.local_sampling import RowSampling, sample
from openforgerl.errors import EngineAborted, EngineError
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest


class Receiver(Protocol):
    """Where a call's chunks go; the last thing put is a chunk with `finish`, or an error."""

    @property
    def cancelled(self) -> bool: ...

    def put(self, item: GenerateChunk | EngineError) -> None: ...


class Row:
    """One call in the engine."""

    __slots__ = ("cached", "ids", "limit", "prompt", "receiver", "request", "sampling")

    def __init__(self, request: GenerateRequest, sampling: RowSampling, limit: int, receiver: Receiver) -> None:
        self.request = request
        self.sampling = sampling
        self.limit = limit
        """Most ids of the answer."""
        self.receiver = receiver
        self.ids = list(request.prompt_ids)
        self.prompt = len(self.ids)
        self.cached = 0
        """Positions of its slot that are filled."""

    @property
    def ready(self) -> bool:
        return self.cached == len(self.ids) - 1


class Batch:
    """Not safe for threads: the worker owns it. `rows[i]` is in slot i; ready rows come first, then at most one that is
    being prefilled."""

    def __init__(self, model: PolicyModel, config: LocalEngineConfig, policy_version: int) -> None:
        self._model = model
        self._cache = model.cache
        self._tree = PrefixTree()
        self._config = config
        self.policy_version = policy_version
        self.waiting: deque[Row] = deque()
        self.rows: list[Row] = []
        self.counters: Counter[str] = Counter()

    def step(self, *, admit: bool = True) -> None:
        """Drop what was cancelled, prefill up to the budget, decode one token for every ready row."""
        self._drop_cancelled()
        started = time.perf_counter()
        budget = self._config.prefill_tokens
        while budget > 0 and (row := self._next_to_prefill(admit=admit)) is not None:
            budget -= self._prefill(row, budget)
        prefilled = time.perf_counter()
        self._decode()
        self.counters["prefill_us"] += int((prefilled - started) * 1e6)
        self.counters["decode_us"] += int((time.perf_counter() - prefilled) * 1e6)

    def renew(self, policy_version: int) -> None:
        """The weights have changed: nothing computed before survives, and rows in flight are prefilled anew."""
        self.counters["recomputed_calls"] += len(self.rows)
        for row in self.rows:
            row.cached = 0
        self.waiting.extendleft(reversed(self.rows))
        self.rows.clear()
        self._forget()
        self.policy_version = policy_version

    def fail(self, error: EngineError, *, waiting: bool) -> None:
        """Every row, and every waiting call if asked, ends with the error; what was computed is forgotten."""
        failed = [*self.rows, *(self.waiting if waiting else ())]
        self.rows.clear()
        if waiting:
            self.waiting.clear()
        self._forget()
        self.counters["failed_calls"] += len(failed)
        for row in failed:
            row.receiver.put(error)

    def _forget(self) -> None:
        self._tree.clear()
        self._cache.clear()

    def _drop_cancelled(self) -> None:
        for row in [row for row in self.rows if row.receiver.cancelled]:
            self._leave(row)
            self.counters["cancelled_calls"] += 1
        gone = sum(row.receiver.cancelled for row in self.waiting)
        if gone:
            self.waiting = deque(row for row in self.waiting if not row.receiver.cancelled)
            self.counters["cancelled_calls"] += gone

    def _next_to_prefill(self, *, admit: bool) -> Row | None:
        """The row that is being prefilled, else the first waiting call if there is room."""
        if self.rows and not self.rows[-1].ready:
            return self.rows[-1]
        while admit and self.waiting and len(self.rows) < self._config.max_batch:
            row = self.waiting[0]
            if not self._admit(row):
                return None
            if not row.ready:
                return row
        return None

    def _admit(self, row: Row) -> bool:
        """Give it a slot, filled with what is retained of its ids; false: no room yet."""
        slot = len(self.rows)
        # Before room is made, so that what it needs is the most recently used.
        pieces = self._tree.match(row.ids[:-1])
        if not self._reserve(slot + 1, max(len(other.ids) for other in (row, *self.rows))):
            return False
        self.rows.append(self.waiting.popleft())
        for piece in pieces:
            self._cache.write(slot, row.cached, piece)
            row.cached += piece.shape[-2]
        self.counters["reused_tokens"] += row.cached
        return True

    def _prefill(self, row: Row, budget: int) -> int:
        stop = min(row.cached + budget, len(row.ids) - 1)
        count = stop - row.cached
        self._model.prefill(len(self.rows) - 1, row.cached, row.ids[row.cached : stop])
        row.cached = stop
        self.counters["prefilled_tokens"] += count
        if row.ready:
            self._retain(row)
        return count

    def _retain(self, row: Row) -> None:
        slot = self.rows.index(row)
        self._tree.insert(row.ids[: row.cached], lambda start, stop: self._cache.read(slot, start, stop))
        self._shrink_tree()

    def _shrink_tree(self) -> None:
        room = self._config.max_tokens_in_cache - self._cache.tokens
        self.counters["evicted_tokens"] += self._tree.shrink(room)

    def _reserve(self, rows: int, longest: int) -> bool:
        if not self._cache.fit(rows, longest, self._config.max_tokens_in_cache):
            return False
        self._shrink_tree()
        return True

    def _decode(self) -> None:
        while (ready := [row for row in self.rows if row.ready]) and not self._reserve(
            len(self.rows), max(len(row.ids) for row in self.rows)
        ):
            self._put_back(self.rows[-1])
            self.counters["preempted_calls"] += 1
        if not ready:
            return
        logits = self._model.decode([row.ids[-1] for row in ready], [row.cached for row in ready])
        ids, logprobs = sample(logits, [row.sampling for row in ready])
        self.counters["decode_steps"] += 1
        self.counters["sampled_tokens"] += len(ready)
        # All of them first: a row that leaves moves others, with all positions that they have.
        for row, token in zip(ready, ids, strict=True):
            row.cached += 1
            row.ids.append(token)
        for row, logprob in zip(ready, logprobs, strict=True):
            self._give_out(row, logprob)

    def _give_out(self, row: Row, logprob: float) -> None:
        if math.isnan(logprob):
            self._leave(row, retain=False)
            self.counters["failed_calls"] += 1
            row.receiver.put(EngineError(f"request {row.request.request_id}: the logits are not finite numbers"))
            return
        token, finish = row.ids[-1], None
        if token in row.request.stop_ids:
            finish = EngineFinish.STOP
        elif len(row.ids) - row.prompt >= row.limit:
            finish = EngineFinish.LENGTH
        if finish is not None:
            self._leave(row)
            self.counters["finished_calls"] += 1
        row.receiver.put(
            GenerateChunk(ids=(token,), logprobs=(logprob,), policy_version=self.policy_version, finish=finish)
        )

    def _put_back(self, row: Row) -> None:
        """Its slot is taken from it: it waits at the front of the queue with the ids that it has."""
        self._leave(row, retain=False)
        row.cached = 0
        self.waiting.appendleft(row)

    def _leave(self, row: Row, *, retain: bool = True) -> None:
        """Free a slot; the last ready row moves into it, and the row that is being prefilled moves up."""
        if retain and row.cached:
            self._retain(row)
        gap = self.rows.index(row)
        last = sum(other.ready for other in self.rows) - 1
        if gap < last:
            self._move(last, gap)
            gap = last
        if gap < len(self.rows) - 1:
            self._move(len(self.rows) - 1, gap)
        self.rows.pop()

    def _move(self, source: int, target: int) -> None:
        self._cache.move(source, target, self.rows[source].cached)
        self.rows[target] = self.rows[source]


def aborted(reason: str) -> EngineAborted:
    """For calls that the engine gives up."""
    return EngineAborted(f"the call was given up: {reason}; send it again")
