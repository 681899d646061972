"""A text API of a vendor's, for teachers and evaluation: text out, text back. What it says has no ids.

Such calls are recorded as text; no row has a token of theirs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path

from openforgerl.engines.flights import Flights
from openforgerl.engines.limits import refusal
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.replicas import Replicas
from openforgerl.engines.sse import EventSplitter
from openforgerl.engines.text_wire import Said, TextAsked, TextReader, TextWire
from openforgerl.engines.upstream_chat import ChatWire
from openforgerl.engines.upstream_messages import MessagesWire
from openforgerl.errors import EngineAborted, EngineError
from openforgerl.records import GenerateChunk, GenerateRequest

WIRES: Mapping[str, TextWire] = {"openai": ChatWire(), "anthropic": MessagesWire()}
CONTEXT = 1 << 20
"""Ids of our tokenizer, where nobody said a number: how long its context is, the vendor knows."""


class UpstreamEngine:
    """Engine over a text API."""

    def __init__(self, config: RemoteEngineConfig) -> None:
        self._config = config
        self._wire = WIRES[config.wire]
        self._replicas = Replicas(config)
        self._flights = Flights()
        self._closed = False

    @classmethod
    async def open(cls, folder: Path, config: RemoteEngineConfig) -> UpstreamEngine:
        """Nothing is asked before the first call: it may cost money. Raises ConfigError."""
        return cls(config)

    @property
    def context_length(self) -> int:
        return self._config.context_length or CONTEXT

    @property
    def policy_version(self) -> int:
        return 0

    @property
    def logprob_kind(self) -> str:
        return "none"

    @property
    def enforces_schema(self) -> bool:
        return self._wire.enforces_schema

    @property
    def counters(self) -> Mapping[str, int]:
        return dict(self._replicas.counters)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        self._check_open()
        body, reader, splitter = self._wire.body(self._asked(request)), self._wire.reader(), EventSplitter()
        async with (
            self._flights.flight() as flight,
            self._replicas.post(request.session_id, self._wire.path, body, flight) as parts,
        ):
            async for part in parts:
                for data in splitter.feed(part):
                    said = _read(reader, data)
                    if said.events or said.finish is not None:
                        yield GenerateChunk(ids=(), logprobs=(), policy_version=0, finish=said.finish, said=said.events)
                    if said.finish is not None:
                        return
        raise EngineAborted(f"request {request.request_id}: the upstream's stream ended too early; try again")

    async def load_weights(self, folder: Path, policy_version: int) -> None:
        self._check_open()
        raise refusal("an upstream engine cannot be given weights")

    async def aclose(self) -> None:
        self._closed = True
        with suppress(EngineError):
            async with self._flights.grounded(0):
                pass
        await self._replicas.aclose()

    def _asked(self, request: GenerateRequest) -> TextAsked:
        conversation = request.conversation
        if conversation is None:
            raise refusal(f"request {request.request_id}: an upstream engine takes a conversation, not ids")
        if request.images or conversation.images:
            raise refusal("images: upstream engines are given none")
        room = self.context_length - len(request.prompt_ids)
        most = request.sampling.max_tokens
        return TextAsked(
            conversation=conversation,
            sampling=request.sampling,
            max_tokens=None if most == room else most,
            model=self._config.model or conversation.model,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")


def _read(reader: TextReader, data: bytes) -> Said:
    return reader.read(data) if data else Said(finish=None)
