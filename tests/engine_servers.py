"""Small servers that speak the documented wires of vLLM and SGLang, and lie, stall and break off when told to.

They are no mocks: the engine members talk to them over real connections.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

STOP = 2
Json = dict[str, Any]


class Cut:
    """The connection is broken here."""


@dataclass(frozen=True)
class Raw:
    """These bytes, in one write."""

    data: bytes


Step = Json | Cut | Raw | asyncio.Event
Script = Callable[[Json], Iterable[Step]]


def sampled(body: Json) -> list[int]:
    """As many letters as the prompt's first id says, then the end of the turn; within the limits."""
    sampling = body.get("sampling_params", body)
    prompt = body.get("prompt") or body["input_ids"]
    limit = sampling.get("max_tokens") or sampling["max_new_tokens"]
    ids = [*[97] * (prompt[0] - prompt[1:].count(97)), STOP]
    stops = set(sampling["stop_token_ids"])
    end = next((place + 1 for place, token in enumerate(ids) if token in stops), None)
    whole = ids[:end] if end is not None else [*ids, *[97] * limit]
    return whole[:limit]


def reason(body: Json, ids: Sequence[int]) -> str:
    stops = body.get("sampling_params", body)["stop_token_ids"]
    return "stop" if ids and ids[-1] in stops else "length"


def completion(ids: Sequence[int], finish: str | None = None, **choice: Any) -> Json:
    """One event of /v1/completions."""
    logprobs = {"token_logprobs": [-0.5] * len(ids), "tokens": [f"token_id:{token}" for token in ids]}
    said = {"index": 0, "text": "?", "logprobs": logprobs, "token_ids": list(ids), "finish_reason": finish}
    return {"id": "cmpl-1", "object": "text_completion", "model": "toy", "choices": [{**said, **choice}]}


def honest(body: Json) -> list[Step]:
    ids = sampled(body)
    events: list[Step] = [completion([token]) for token in ids]
    last = completion(ids[-1:], reason(body, ids))
    events[-1] = last
    return echoing(body, events)


def echoing(body: Json, events: Sequence[Step]) -> list[Step]:
    """The first event has the prompt's ids."""
    first = events[0]
    assert isinstance(first, dict)
    choice = {**first["choices"][0], "prompt_token_ids": body["prompt"]}
    return [{**first, "choices": [choice]}, *events[1:]]


def generation(body: Json, ids: Sequence[int], finish: Json | None = None, **meta: Any) -> Json:
    """One event of /generate, which repeats all ids so far."""
    said = {
        "id": "r", "finish_reason": finish, "prompt_tokens": len(body["input_ids"]), "completion_tokens": len(ids),
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
    }  # fmt: skip
    return {"text": "?", "output_ids": list(ids), "meta_info": {**said, **meta}}


def honest_generation(body: Json) -> list[Step]:
    ids = sampled(body)
    matched = {"type": "stop", "matched": ids[-1]}
    end = matched if reason(body, ids) == "stop" else {"type": "length", "length": len(ids)}
    events: list[Step] = [generation(body, ids[:count]) for count in range(1, len(ids))]
    return [*events, generation(body, ids, end)]


@dataclass
class EngineServer:
    """Answers calls by its script, and everything else as the real servers do."""

    script: Script = honest
    url: str = ""
    context_length: int = 512
    raw_logprobs: bool = False
    spaced: bool = False
    """Its JSON has blanks, which vLLM's has not."""
    statuses: list[int] = field(default_factory=list)
    """The next calls are answered with these."""
    looks: int = 0
    calls: list[Json] = field(default_factory=list)
    questions: list[tuple[str, Json]] = field(default_factory=list)
    updates_fail: bool = False
    slow: asyncio.Event | None = None
    """Its health is told once this is set."""
    device: str = "cuda"
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    runner: web.AppRunner | None = None
    port: int = 0

    async def start(self) -> EngineServer:
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/server_info", self._info),
                web.post("/v1/completions", self._call),
                web.post("/generate", self._call),
                web.post("/{update:collective_rpc|reset_prefix_cache|update_weights_from_disk}", self._update),
            ]
        )
        self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self.runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def stop(self) -> None:
        assert self.runner is not None
        await self.runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.looks += 1
        if self.slow:
            await self.slow.wait()
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "toy", "max_model_len": self.context_length}]})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"vllm_config": {"device_config": {"device": self.device}}})

    async def _update(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.questions.append((request.path, body))
        if request.path == "/collective_rpc":
            return web.json_response({"results": [None]}, status=500 if self.updates_fail else 200)
        return web.json_response({"success": not self.updates_fail})

    async def _call(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if not body.get("stream"):
            return web.json_response(self._probe(body))
        self.calls.append(body)
        if self.statuses:
            return web.json_response({"error": {"message": "no"}}, status=self.statuses.pop(0))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            for step in self.script(body):
                if isinstance(step, Cut):
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if isinstance(step, asyncio.Event):
                    await step.wait()
                    continue
                await response.write(step.data if isinstance(step, Raw) else self._event(step))
            await response.write(b"data: [DONE]\n\n")
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return response

    def _event(self, step: Json) -> bytes:
        separators = (", ", ": ") if self.spaced else (",", ":")
        return b"data: " + json.dumps(step, separators=separators).encode() + b"\n\n"

    def _probe(self, body: Json) -> Json:
        temperature = 1.0 if self.raw_logprobs else body.get("sampling_params", body)["temperature"]
        high, low = -0.5 / temperature, -3.5 / temperature
        tops = {"token_id:5": high, "token_id:6": low}
        pairs = [[[high, 5, None], [low, 6, None]]]
        return {
            "choices": [{"logprobs": {"top_logprobs": [tops]}}],
            "meta_info": {"output_top_logprobs": pairs},
        }


@asynccontextmanager
async def serving(*servers: EngineServer) -> AsyncIterator[tuple[EngineServer, ...]]:
    for server in servers:
        await server.start()
    try:
        yield servers
    finally:
        for server in servers:
            await server.stop()
