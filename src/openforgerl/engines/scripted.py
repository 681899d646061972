"""An engine that samples what a script says: the substitute in tests, and the teacher of the warm start.

It keeps the laws of an engine: an end-of-turn id is part of the output, answers stop at the limits, closing the
generator cancels the call. It must not know templates or dialects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from openforgerl.engines.limits import answer_limit
from openforgerl.errors import EngineAborted, EngineError
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest


class Encoder(Protocol):
    """The part of a codec that a script needs."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """End-of-turn ids; the first one ends a scripted answer."""
        ...

    def encode(self, text: str) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """One answer and how it comes."""

    text: str = ""
    ids: tuple[int, ...] | None = None
    """Exactly these ids, whatever `text` says; nothing is appended."""
    ends_turn: bool = True
    """The first stop id follows the text. False: the answer ends by length."""
    logprobs: tuple[float, ...] | None = None
    """One per id, before any limit cuts; None means -0.1 each."""
    chunk_sizes: tuple[int, ...] = (1,)
    """Ids of the first, second, ... chunk; the last size repeats."""
    gates: Mapping[int, asyncio.Event] = field(default_factory=dict)
    """Before the id at this position is given out, wait for the event."""
    abort_after: int | None = None
    """After this many ids the call ends with finish "abort"."""
    fail_after: int | None = None
    """After this many ids `error` is raised."""
    error: EngineError = field(default_factory=lambda: EngineError("scripted failure"))

    def __post_init__(self) -> None:
        if not self.chunk_sizes or min(self.chunk_sizes) < 1:
            raise ValueError(f"chunk_sizes {self.chunk_sizes} must be positive numbers")


Script = Callable[[GenerateRequest], str | ScriptedAnswer]
"""What to "sample" for this prompt; text carries its markup (tool calls, reasoning) as the model would write it."""


class ScriptedEngine:
    """Engine over a script. Weights are only a number here: a load changes the version of ids given out after it."""

    def __init__(self, script: Script, codec: Encoder, *, context_length: int = 8192, policy_version: int = 0) -> None:
        self._script = script
        self._codec = codec
        self._context_length = context_length
        self._policy_version = policy_version
        self._closed = asyncio.Event()
        self.requests: list[GenerateRequest] = []
        """Every request, in order of arrival."""
        self.running: set[str] = set()
        """Ids of the requests that are being answered."""
        self.cancelled: list[str] = []
        """Ids of the requests that were closed before their end."""
        self.loaded: list[Path] = []

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def logprob_kind(self) -> str:
        return "scripted"

    @property
    def enforces_schema(self) -> bool:
        return False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        self._check_open()
        limit = answer_limit(request, self._context_length)
        self.requests.append(replace(request, conversation=None))
        self.running.add(request.request_id)
        try:
            said = self._script(request)
            answer = ScriptedAnswer(text=said) if isinstance(said, str) else said
            ids, logprobs = self._sampled(answer)
            for start, stop, finish in _steps(answer, ids, request.stop_ids, limit):
                if start in answer.gates:
                    await self._pass(answer.gates[start])
                self._check_in_flight(request)
                if start == stop and answer.fail_after == start:
                    raise answer.error
                yield GenerateChunk(
                    ids=ids[start:stop],
                    logprobs=logprobs[start:stop],
                    policy_version=self._policy_version,
                    finish=finish,
                )
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled.append(request.request_id)
            raise
        finally:
            self.running.discard(request.request_id)

    async def load_weights(self, folder: Path, policy_version: int) -> None:
        self._check_open()
        self.loaded.append(folder)
        self._policy_version = policy_version

    async def aclose(self) -> None:
        self._closed.set()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise EngineError("the engine is closed")

    def _check_in_flight(self, request: GenerateRequest) -> None:
        if self._closed.is_set():
            raise EngineAborted(f"request {request.request_id} was given up: the engine was closed")

    async def _pass(self, gate: asyncio.Event) -> None:
        """Wait for the gate, or for the engine to be closed."""
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self._closed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _sampled(self, answer: ScriptedAnswer) -> tuple[tuple[int, ...], tuple[float, ...]]:
        if answer.ids is not None:
            ids = answer.ids
        else:
            ids = (*self._codec.encode(answer.text), *(self._codec.stop_ids[:1] if answer.ends_turn else ()))
        logprobs = answer.logprobs if answer.logprobs is not None else (-0.1,) * len(ids)
        if not ids or len(ids) != len(logprobs):
            raise EngineError(f"a scripted answer has {len(ids)} ids and {len(logprobs)} log-probs")
        return ids, logprobs


def _steps(
    answer: ScriptedAnswer, ids: tuple[int, ...], stop_ids: tuple[int, ...], limit: int
) -> Iterator[tuple[int, int, EngineFinish | None]]:
    """[start, stop) of every chunk and its finish. An empty step at the end is the scripted abort or failure."""
    length, finish = _ending(ids, stop_ids, limit)
    fault = min((at for at in (answer.fail_after, answer.abort_after) if at is not None), default=length + 1)
    start = number = 0
    while start < min(length, fault):
        size = answer.chunk_sizes[min(number, len(answer.chunk_sizes) - 1)]
        stop = min([start + size, length, fault, *(at for at in answer.gates if at > start)])
        yield start, stop, finish if stop == length < fault else None
        start, number = stop, number + 1
    if fault <= length:
        yield start, start, EngineFinish.ABORT


def _ending(ids: tuple[int, ...], stop_ids: tuple[int, ...], limit: int) -> tuple[int, EngineFinish]:
    """How many of the ids are given out, and why it ends there."""
    for position, token in enumerate(ids[:limit]):
        if token in stop_ids:
            return position + 1, EngineFinish.STOP
    return min(len(ids), limit), EngineFinish.LENGTH
