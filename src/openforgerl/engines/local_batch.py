"""Continuous batching: waiting calls become rows, and every step computes new ids of all rows in one forward.

A row is its ids; keys and values of the first `cached` ones are in its slot. A row that lacks only its last id gives
one id to a step and gets the next one sampled; a row that lacks more (a new prompt, or one whose slot was taken from it
for memory or new weights) gives a part. Laws: first come, first served; at most `max_tokens_in_cache` positions.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from typing import Protocol

from torch import Tensor

from openforgerl.engines.local_attention import Piece
from openforgerl.engines.local_config import LocalEngineConfig
from openforgerl.engines.local_model import PolicyModel
from openforgerl.engines.local_prefix import PrefixTree, common
from openforgerl.engines.local_sampling import RowSampling, sample
from openforgerl.errors import EngineAborted, EngineError
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest

_WORTH_WAITING = 16
"""Ids that a waiting call must save by waiting one step for a prompt that is being computed."""


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
    def missing(self) -> int:
        """Ids whose keys and values are to be computed before the next id can be sampled; at least 1."""
        return len(self.ids) - self.cached


class Batch:
    """Not safe for threads: the worker owns it. `rows[i]` is in slot i."""

    def __init__(self, model: PolicyModel, config: LocalEngineConfig, policy_version: int) -> None:
        self._model = model
        self._cache = model.cache
        self._tree = PrefixTree()
        self._config = config
        self.policy_version = policy_version
        self.waiting: deque[Row] = deque()
        self.rows: list[Row] = []
        self.counters: Counter[str] = Counter()

    @property
    def positions_in_memory(self) -> int:
        """Of slots, padding included, and of retained prefixes."""
        return self._cache.tokens + self._tree.tokens

    def step(self, *, admit: bool = True) -> None:
        """Drop what was cancelled, admit what fits, compute, and give every row that lacks nothing its next id."""
        started = time.perf_counter()
        self._drop_cancelled()
        self._make_room()
        pieces = self._old_pieces()
        if admit:
            self._admit(pieces)
        if pieces:
            self._compute(pieces)
            self.counters["steps"] += 1
        self.counters["step_us"] += int((time.perf_counter() - started) * 1e6)

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

    def _make_room(self) -> None:
        """Every row gets one more id; where memory is short, the youngest ones wait again."""
        while self.rows and not self._reserve(len(self.rows), max(len(row.ids) for row in self.rows)):
            self._put_back(self.rows[-1])
            self.counters["preempted_calls"] += 1

    def _old_pieces(self) -> list[Piece]:
        pieces: list[Piece] = []
        for slot in range(len(self.rows)):
            self._add_piece(pieces, slot)
        return pieces

    def _add_piece(self, pieces: list[Piece], slot: int) -> None:
        """What the row lacks, within the step's budget; one id is always within it."""
        row, budget = self.rows[slot], self._budget(pieces)
        count = 1 if row.missing == 1 else min(row.missing, budget)
        if count > 0:
            pieces.append(Piece(slot=slot, start=row.cached, ids=row.ids[row.cached : row.cached + count]))

    def _budget(self, pieces: list[Piece]) -> int:
        return self._config.prefill_tokens - sum(len(piece.ids) for piece in pieces if len(piece.ids) > 1)

    def _admit(self, pieces: list[Piece]) -> None:
        """Waiting calls, in order, while there are slots, memory and budget; each adds its piece."""
        while self.waiting and len(self.rows) < self._config.max_batch and self._budget(pieces) > 0:
            row, slot = self.waiting[0], len(self.rows)
            # Before room is made, so that what it needs is the most recently used.
            kept = self._tree.match(row.ids[:-1])
            length = sum(piece.shape[-2] for piece in kept)
            if self._soon_retained(row) > length + _WORTH_WAITING:
                return
            if not self._reserve(slot + 1, max(len(other.ids) for other in (row, *self.rows))):
                return
            self.rows.append(self.waiting.popleft())
            for piece in kept:
                self._cache.write(slot, row.cached, piece)
                row.cached += piece.shape[-2]
            self.counters["reused_tokens"] += length
            self._add_piece(pieces, slot)

    def _soon_retained(self, row: Row) -> int:
        """The longest prefix that it shares with a prompt which is being computed now."""
        computed = [other.ids for other in self.rows if other.missing > 1]
        return max((min(common(row.ids, ids), len(row.ids) - 1) for ids in computed), default=0)

    def _compute(self, pieces: list[Piece]) -> None:
        whole = [at for at, piece in enumerate(pieces) if piece.stop == len(self.rows[piece.slot].ids)]
        logits = self._model.forward(pieces, whole)
        for piece in pieces:
            row = self.rows[piece.slot]
            row.cached = piece.stop
            if len(piece.ids) > 1:
                self.counters["prefilled_tokens"] += len(piece.ids)
                if row.missing == 0:
                    self._retain(row)
        if whole:
            self._sample([self.rows[pieces[at].slot] for at in whole], logits)

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

    def _sample(self, rows: list[Row], logits: Tensor) -> None:
        ids, logprobs = sample(logits, [row.sampling for row in rows])
        self.counters["sampled_tokens"] += len(rows)
        # All of them first: a row that leaves moves others.
        for row, token in zip(rows, ids, strict=True):
            row.ids.append(token)
        for row, logprob in zip(rows, logprobs, strict=True):
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
        """Free a slot; the last row moves into it."""
        if retain and row.cached:
            self._retain(row)
        gap, last = self.rows.index(row), len(self.rows) - 1
        if gap < last:
            self._cache.move(last, gap, self.rows[last].cached)
            self.rows[gap] = self.rows[last]
        self.rows.pop()


def aborted(reason: str) -> EngineAborted:
    """For calls that the engine gives up."""
    return EngineAborted(f"the call was given up: {reason}; send it again")
