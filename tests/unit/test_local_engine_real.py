"""The real model, where setup has put it: the engine's log-probs are those of transformers' own forward."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from openforgerl.engines.local import LocalEngine, LocalEngineConfig
from openforgerl.records import GenerateRequest, Sampling
from openforgerl.tokens.codec import Codec
from tiny_models import load_plain, reference_logprobs

CACHE = Path(os.environ.get("OPENFORGERL_CACHE") or Path.home() / ".cache" / "openforgerl")
FOLDER = CACHE / "models" / "smollm2-135m-instruct"
PROMPTS = ("List three files. ", "List three files and their sizes in bytes, largest first. ", "Say hello. ")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"not run: {FOLDER} is missing, `make setup` makes it")


async def sampled(engine: LocalEngine, prompt: tuple[int, ...], temperature: float) -> tuple[list[int], list[float]]:
    request = GenerateRequest(
        request_id="r", session_id="s", prompt_ids=prompt, sampling=Sampling(temperature=temperature, max_tokens=12),
        stop_ids=(2,),
    )  # fmt: skip
    async with aclosing(engine.generate(request)) as chunks:
        got = [chunk async for chunk in chunks]
    return [token for chunk in got for token in chunk.ids], [value for chunk in got for value in chunk.logprobs]


async def test_logprobs_of_smollm2_agree_in_a_batch_and_on_a_reused_prefix() -> None:
    codec = Codec.load(FOLDER)
    prompts = [codec.encode("You are a shell agent. " * 4 + text) for text in PROMPTS]
    temperatures = [1.0, 0.7, 0.0]
    engine = LocalEngine.load(FOLDER, LocalEngineConfig(max_batch=4))
    try:
        async with asyncio.timeout(240):
            got = await asyncio.gather(
                *(sampled(engine, prompt, heat) for prompt, heat in zip(prompts, temperatures, strict=True))
            )
            prompts.append((*prompts[0], *got[0][0], *prompts[2]))
            got.append(await sampled(engine, prompts[-1], 1.0))
    finally:
        await engine.aclose()
    model = load_plain(FOLDER)
    for prompt, heat, (ids, logprobs) in zip(prompts, [*temperatures, 1.0], got, strict=True):
        assert logprobs == pytest.approx(reference_logprobs(model, prompt, ids, heat or 1.0), abs=1e-4)
    assert engine.counters["reused_tokens"] > len(prompts[0])
