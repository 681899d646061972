"""The local engine: a Hugging Face causal LM in this process, sampled by one thread, driven from asyncio.

Calls that come together are decoded as one batch. Weights are replaced in place: new calls wait, calls in flight end
first, or go on with the new weights when `update_drain_s` is over; every chunk carries the version that sampled it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from openforgerl.engines.limits import answer_limit, refusal
from openforgerl.engines.local_batch import Row
from openforgerl.engines.local_config import LocalEngineConfig
from openforgerl.engines.local_model import PolicyModel, read_state
from openforgerl.engines.local_sampling import row_sampling
from openforgerl.engines.local_worker import Stop, Wake, WeightUpdate, Worker
from openforgerl.errors import EngineError
from openforgerl.records import GenerateChunk, GenerateRequest

__all__ = ["LocalEngine", "LocalEngineConfig"]


class LocalEngine:
    """Engine over one model in memory."""

    def __init__(self, model: PolicyModel, config: LocalEngineConfig, *, policy_version: int = 0) -> None:
        self._config = config
        self._vocabulary = model.vocabulary
        self._context_length = min(
            model.context_length, config.context_length or model.context_length, config.max_tokens_in_cache
        )
        self._worker = Worker(model, config, policy_version)
        self._closing = False

    @classmethod
    def load(cls, folder: Path, config: LocalEngineConfig, *, policy_version: int = 0) -> LocalEngine:
        """Raises EngineError where the folder is no full-attention causal LM."""
        model = PolicyModel.load(folder, dtype=getattr(torch, config.dtype), slots=config.max_batch)
        return cls(model, config, policy_version=policy_version)

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def policy_version(self) -> int:
        return self._worker.batch.policy_version

    @property
    def logprob_kind(self) -> str:
        return "sampled"

    @property
    def enforces_schema(self) -> bool:
        return False

    @property
    def counters(self) -> Mapping[str, int]:
        """Tokens prefilled, reused, sampled, evicted; calls finished, cancelled, preempted, failed; times."""
        return dict(self._worker.batch.counters)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        self._check_open()
        receiver = _Stream()
        self._worker.post(self._row(request, receiver))
        finish = None
        try:
            while finish is None:
                chunk = await receiver.get()
                finish = chunk.finish
                yield chunk
        finally:
            if finish is None:
                receiver.cancelled = True
                with contextlib.suppress(EngineError):
                    self._worker.post(Wake())

    async def load_weights(self, folder: Path, policy_version: int) -> None:
        await self.set_weights(await asyncio.to_thread(read_state, folder), policy_version)

    async def set_weights(self, state: Mapping[str, Tensor], policy_version: int) -> None:
        """Weights by name, as `state_dict()` gives them; they must not change before this returns."""
        self._check_open()
        update = WeightUpdate(
            state=state, policy_version=policy_version, drain_until=time.monotonic() + self._config.update_drain_s
        )
        self._worker.post(update)
        await asyncio.wrap_future(update.done)

    async def aclose(self) -> None:
        """Calls in flight end with EngineAborted. Raises EngineError if the thread outlives the deadline."""
        self._closing = True
        with contextlib.suppress(EngineError):
            self._worker.post(Stop())
        if not await asyncio.to_thread(self._worker.join, self._config.close_timeout_s):
            raise EngineError(f"the engine's thread is still computing after {self._config.close_timeout_s} s")

    def _row(self, request: GenerateRequest, receiver: _Stream) -> Row:
        limit = answer_limit(request, self._context_length)
        if request.images:
            raise refusal(f"request {request.request_id}: the local engine reads no images", code="unsupported_content")
        wrong = next((token for token in request.prompt_ids if not 0 <= token < self._vocabulary), None)
        if wrong is not None:
            raise refusal(f"request {request.request_id}: id {wrong} is not in a vocabulary of {self._vocabulary}")
        return Row(request, row_sampling(request), limit, receiver)

    def _check_open(self) -> None:
        if self._closing:
            raise EngineError("the engine is closed")


class _Stream:
    """From the worker's thread to the loop that the call came from."""

    def __init__(self) -> None:
        self.cancelled = False
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[GenerateChunk | EngineError] = asyncio.Queue()

    def put(self, item: GenerateChunk | EngineError) -> None:
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self.cancelled = True

    async def get(self) -> GenerateChunk:
        """The next chunk; chunks that have piled up come as one. Raises what the worker put."""
        got = [await self._items.get()]
        while not self._items.empty():
            got.append(self._items.get_nowait())
        return self._merged(got)

    def _merged(self, got: list[GenerateChunk | EngineError]) -> GenerateChunk:
        first = got[0]
        if isinstance(first, EngineError):
            raise first
        same: list[GenerateChunk] = []
        for item in got:
            if isinstance(item, EngineError) or item.policy_version != first.policy_version:
                break
            same.append(item)
        for item in got[len(same) :]:
            self._items.put_nowait(item)
        return GenerateChunk(
            ids=tuple(token for chunk in same for token in chunk.ids),
            logprobs=tuple(value for chunk in same for value in chunk.logprobs),
            policy_version=first.policy_version,
            finish=same[-1].finish,
        )
