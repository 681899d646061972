"""An engine of one's own for `openforgerl serve`: vLLM's /inference/v1/generate over HTTP, for the bench of the proxy.

A call whose max_tokens is odd is streamed by the engine: an Engine is not told whether its client streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, TCPConnector

from openforgerl.engines.scripted import ScriptedEngine
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest


class BenchEngine(ScriptedEngine):
    """Everything but `generate` as the scripted engine has it."""

    url = ""
    _http: ClientSession | None = None

    @staticmethod
    def load(folder: Path, options: Mapping[str, Any]) -> BenchEngine:
        engine = BenchEngine(lambda request: "", None, context_length=1 << 20)  # type: ignore[arg-type]
        engine.url = options["url"]
        return engine

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        if self._http is None:
            self._http = ClientSession(connector=TCPConnector(limit=0), auto_decompress=False)
        streamed = bool((request.sampling.max_tokens or 0) % 2)
        body = orjson.dumps({"token_ids": request.prompt_ids, "sampling_params": {"logprobs": 1}, "stream": streamed})
        headers = {"content-type": "application/json"}
        async with self._http.post(self.url + "/inference/v1/generate", data=body, headers=headers) as response:
            if not streamed:
                yield _chunk(await response.read())
                return
            left = b""
            async for part in response.content.iter_any():
                *events, left = (left + part).split(b"\n\n")
                for event in events:
                    if event != b"data: [DONE]":
                        yield _chunk(event.removeprefix(b"data: "))

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.close()
        await asyncio.sleep(0)


def _chunk(data: bytes) -> GenerateChunk:
    choice = orjson.loads(data)["choices"][0]
    return GenerateChunk(
        ids=tuple(choice["token_ids"]),
        logprobs=tuple(each["logprob"] for each in choice["logprobs"]["content"]),
        policy_version=0,
        finish=EngineFinish(choice["finish_reason"]) if choice["finish_reason"] else None,
    )
