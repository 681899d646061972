"""An engine that is a server elsewhere, or several: ids out over HTTP, ids and log-probs back, each answer checked.

A weight update lets calls end; what is late is cancelled at the server and sampled on, behind the ids that it has,
with the new weights. So every id is of the version that its chunk says.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from openforgerl.engines.flights import Flight, Flights
from openforgerl.engines.limits import answer_limit, refusal
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.replicas import Replica, Replicas
from openforgerl.engines.sse import EventSplitter
from openforgerl.engines.wire import Asked, LogprobKind, Piece, Reader, Wire, event, field_of, list_of, logprob_kind
from openforgerl.errors import ConfigError, EngineAborted, EngineError, EngineTimeout
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest

_log = logging.getLogger(__name__)
_UPDATE_S = 600.0
_PROBE_S = 120.0
_TAIL_S = 1.0
_COUNTERS = {"prompt_not_echoed": "prompts_not_echoed", "engine_aborted": "streams_given_up"}


class RemoteEngine:
    """Engine over a wire. Subclasses say which."""

    wire: Wire

    def __init__(self, config: RemoteEngineConfig, *, policy_version: int = 0) -> None:
        self._config = config
        self._replicas = Replicas(config)
        self._flights = Flights()
        self._policy_version = policy_version
        self._folder: Path | None = None
        self._context_length = 0
        self._model = config.model
        self._logprob_kind: LogprobKind = "raw"
        self._updating = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(cls, folder: Path, config: RemoteEngineConfig, *, policy_version: int = 0) -> Self:
        """Once every server answers. `folder` gives the context length where no server does. Raises ConfigError."""
        engine = cls(config, policy_version=policy_version)
        try:
            await engine._meet(folder)
        except BaseException:
            await engine.aclose()
            raise
        engine._replicas.watch(cls.wire.health_path, engine._restore)
        return engine

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def logprob_kind(self) -> str:
        return self._logprob_kind

    @property
    def enforces_schema(self) -> bool:
        return True

    @property
    def counters(self) -> Mapping[str, int]:
        """Sessions moved, replicas lost and restored, requests repeated, answers not believed, calls resumed."""
        return dict(self._replicas.counters)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        self._check_open()
        limit = answer_limit(request, self._context_length)
        if request.images:
            raise refusal("images: engines that are servers are given none")
        before: list[int] = []
        finish = None
        while finish is None:
            async with self._flights.flight() as flight:
                self._check_open()
                asked = Asked(
                    request=request,
                    before=tuple(before),
                    limit=limit,
                    model=self._model,
                    policy_version=self._policy_version,
                )
                try:
                    async for chunk in self._sample(asked, flight):
                        before += chunk.ids
                        finish = chunk.finish
                        yield chunk
                except EngineAborted:
                    if self._closed or not flight.interrupted or (before and not _resumable(request)):
                        raise
                    self._count("calls_resumed")

    async def load_weights(self, folder: Path, policy_version: int) -> None:
        """Where some servers cannot load them, the others go on alone; where none can, nothing is sampled any more."""
        self._check_open()
        async with self._updating, self._flights.grounded(self._config.update_drain_s):
            self._replicas.updated = True
            for replica in self._replicas.all:
                replica.current = False
            faults = [
                fault for each in self._replicas.all if (fault := await self._update(each, folder, policy_version))
            ]
            if len(faults) == len(self._replicas.all):
                raise faults[0]
            self._folder, self._policy_version = folder, policy_version

    async def aclose(self) -> None:
        self._closed = True
        with suppress(EngineError):
            async with self._flights.grounded(0):
                pass
        await self._replicas.aclose()

    async def _sample(self, asked: Asked, flight: Flight) -> AsyncGenerator[GenerateChunk, None]:
        """One request. Raises EngineAborted where the stream ends without an end."""
        session, body, intake = asked.request.session_id, self.wire.body(asked), Intake(self.wire.reader(asked))
        async with self._replicas.post(session, self.wire.path, body, flight) as parts:
            async for part in parts:
                chunk = intake.take(part, asked.policy_version)
                if chunk is not None:
                    yield chunk
                if intake.error is not None:
                    self._count(_COUNTERS.get(intake.error.code, "answers_not_believed"))
                    raise intake.error
                if intake.finish is not None:
                    await self._end(asked, intake, parts)
                    return
        raise EngineAborted(f"request {asked.request.request_id}: the engine's stream ended too early; try again")

    async def _end(self, asked: Asked, intake: Intake, parts: AsyncIterator[bytes]) -> None:
        """What follows the end is read, so that the connection serves again. Raises EngineError where it is ids."""
        if intake.finish is EngineFinish.STOP and intake.last not in asked.request.stop_ids:
            self._count("stops_without_an_id")
        with suppress(EngineAborted, EngineTimeout, TimeoutError):
            async with asyncio.timeout(_TAIL_S):
                async for part in parts:
                    intake.take(part, asked.policy_version)
        if intake.error is not None and not isinstance(intake.error, EngineAborted):
            raise intake.error

    async def _update(self, replica: Replica, folder: Path, policy_version: int) -> EngineError | None:
        """The fault of a server that has not these weights now."""
        try:
            await self._check_update(replica, folder)
            for question in self.wire.update(folder, policy_version):
                answer = await self._replicas.ask(replica, "POST", question.path, question.body, _UPDATE_S)
                if question.good and answer and field_of(json.loads(answer), question.good) is not True:
                    raise EngineError(f"the engine at {replica.url} answered {question.path}: {answer[:200]!r}")
        except (EngineError, ValueError) as error:
            _log.error("the weights of %s were not loaded: %s", folder, error)
            self._count("updates_failed")
            return error if isinstance(error, EngineError) else EngineError(str(error))
        replica.current = True
        return None

    async def _check_update(self, replica: Replica, folder: Path) -> None:
        """Raises EngineError for weights that the server would take and not sample from."""

    async def _restore(self, replica: Replica) -> None:
        """Of a server that answers again. Raises EngineError where its weights are not the newest."""
        async with self._updating:
            if replica.current:
                return
            if self._folder is None:
                raise EngineError(f"the engine at {replica.url} has no weights to go back to")
            if fault := await self._update(replica, self._folder, self._policy_version):
                raise fault
        self._count("replicas_restored")

    async def _meet(self, folder: Path) -> None:
        """What the servers say about themselves. Raises ConfigError."""
        lengths, kinds = [self._config.context_length or _length_of(folder)], []
        for replica in self._replicas.all:
            try:
                name, length = _listed(await self._replicas.ask(replica, "GET", "/v1/models"), self._model)
                self._model = self._model or name
                lengths.append(length)
                kinds.append(await self._kind(replica))
            except EngineError as error:
                raise ConfigError(f"[engine] base_url: {error}; start the engine first") from error
        self._context_length = min([length for length in lengths if length], default=0)
        if not self._context_length:
            raise ConfigError(f"[engine] context_length: neither the engine nor {folder / 'config.json'} says it")
        self._logprob_kind = "sampled" if set(kinds) == {"sampled"} else "raw"

    async def _kind(self, replica: Replica) -> LogprobKind:
        """Measured: no server says it."""
        answers = []
        for temperature in (1.0, 2.0):
            probe = self.wire.probe(self._model, temperature)
            answers.append(self.wire.probed(await self._replicas.ask(replica, "POST", self.wire.path, probe, _PROBE_S)))
        return logprob_kind(*answers)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    def _count(self, name: str) -> None:
        self._replicas.counters[name] += 1


class Intake:
    """The bytes of one stream become chunks. What came before a fault is kept: `error` says that there is one."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._splitter = EventSplitter()
        self.error: EngineError | None = None
        self.finish: EngineFinish | None = None
        self.last: int | None = None

    def take(self, part: bytes, policy_version: int) -> GenerateChunk | None:
        pieces: list[Piece] = []
        for data in self._splitter.feed(part):
            try:
                pieces.append(self._reader.read(data))
            except EngineError as error:
                self.error = error
                break
        ids = tuple([token for piece in pieces for token in piece.ids])
        self.finish = next((piece.finish for piece in pieces if piece.finish is not None), self.finish)
        self.last = ids[-1] if ids else self.last
        if not ids and self.finish is None:
            return None
        logprobs = tuple([value for piece in pieces for value in piece.logprobs])
        return GenerateChunk(
            ids=ids,
            logprobs=logprobs,
            policy_version=policy_version,
            finish=None if self.error else self.finish,
        )


def _resumable(request: GenerateRequest) -> bool:
    """A grammar, and penalties of what was sampled, would begin anew."""
    used = request.sampling
    return not (request.output_schema or used.presence_penalty or used.frequency_penalty)


def _length_of(folder: Path) -> int:
    """0 where the model's folder does not say it."""
    try:
        length = field_of(json.loads((folder / "config.json").read_bytes()), "max_position_embeddings")
    except (OSError, ValueError):
        return 0
    return length if isinstance(length, int) else 0


def _listed(answer: bytes, wanted: str) -> tuple[str, int]:
    """A model's name and context length (0: not said). Raises EngineError where it is not listed."""
    models = [each for each in list_of(event(answer), "data") if isinstance(field_of(each, "id"), str)]
    names = [str(field_of(each, "id")) for each in models]
    if not names or (wanted and wanted not in names):
        raise EngineError(f"it lists the models {names}, not {wanted!r}" if wanted else "it lists no model")
    length = field_of(models[names.index(wanted) if wanted else 0], "max_model_len")
    return wanted or names[0], length if isinstance(length, int) else 0
