"""How fast the local engine is, beside transformers' own generate in the same run: tokens per second of CPU and wall.

    OMP_NUM_THREADS=2 python bench/engine.py [MODEL_FOLDER]

On a machine that others use, compare the ratios and the CPU figures, not the wall figures.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel

from openforgerl.engines.local import LocalEngine, LocalEngineConfig
from openforgerl.records import GenerateRequest, Sampling

CACHE = Path(os.environ.get("OPENFORGERL_CACHE") or Path.home() / ".cache" / "openforgerl")
CONTEXT, ANSWER = 500, 12


@dataclass(frozen=True)
class Cost:
    tokens: int
    cpu_s: float
    wall_s: float


async def measured(work: Callable[[], Awaitable[int]]) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    tokens = await work()
    return Cost(tokens, time.process_time() - cpu, time.perf_counter() - wall)


def prompts(count: int, shared: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    start = [rng.randrange(100, 40_000) for _ in range(shared)]
    return [start + [rng.randrange(100, 40_000) for _ in range(CONTEXT - shared)] for _ in range(count)]


async def with_engine(engine: LocalEngine, batch: list[list[int]], answer: int) -> int:
    async def call(ids: list[int]) -> int:
        request = GenerateRequest(
            request_id="bench", session_id="bench", prompt_ids=tuple(ids), stop_ids=(),
            sampling=Sampling(temperature=1.0, max_tokens=answer),
        )  # fmt: skip
        async with aclosing(engine.generate(request)) as chunks:
            return sum([len(chunk.ids) async for chunk in chunks])

    return sum(await asyncio.gather(*(call(ids) for ids in batch)))


async def with_generate(model: PreTrainedModel, batch: list[list[int]], answer: int, cache: Cache | None = None) -> int:
    generate: Any = model.generate
    generate(
        torch.tensor(batch), cache=cache, do_sample=True, top_k=0, pad_token_id=0, max_new_tokens=answer,
        min_new_tokens=answer,
    )  # fmt: skip
    return answer * len(batch)


def prefilled(model: PreTrainedModel, ids: list[int], batch: int) -> Cache:
    """The cache of `batch` rows that all begin with the same ids."""
    cache = DynamicCache()
    with torch.no_grad():
        model(torch.tensor([ids[:-1]]), cache=cache)
    cache.batch_repeat_interleave(batch)
    return cache


def report(name: str, ours: Cost, theirs: Cost) -> None:
    cpu, their_cpu = ours.tokens / ours.cpu_s, theirs.tokens / theirs.cpu_s
    print(
        f"{name:34}{ours.tokens / ours.wall_s:9.0f}{cpu:9.0f}{theirs.tokens / theirs.wall_s:16.0f}{their_cpu:9.0f}"
        f"{cpu / their_cpu:9.1f}",
        flush=True,
    )


async def compare_decoding(engine: LocalEngine, model: PreTrainedModel, batch: int) -> None:
    rows = prompts(batch, CONTEXT - 8, batch)
    await with_engine(engine, rows, 1)  # so that what is left to measure is decoding
    ours = await measured(lambda: with_engine(engine, rows, ANSWER))
    same, cache = [rows[0]] * batch, prefilled(model, rows[0], batch)
    report(f"decode, batch {batch}", ours, await measured(lambda: with_generate(model, same, ANSWER, cache)))


async def compare_prompts(engine: LocalEngine, model: PreTrainedModel, shared: int) -> None:
    rows = prompts(4, shared, 100 + shared)
    ours = await measured(lambda: with_engine(engine, rows, 1))
    theirs = await measured(lambda: with_generate(model, rows, 1))
    name = f"4 prompts, {shared} of {CONTEXT} ids shared"
    report(name, replace(ours, tokens=4 * CONTEXT), replace(theirs, tokens=4 * CONTEXT))


async def main(folder: Path) -> None:
    engine = LocalEngine.load(folder, LocalEngineConfig(max_batch=16))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.train(False)
    print(f"{folder.name}, fp32, {torch.get_num_threads()} threads, context {CONTEXT}, load {os.getloadavg()[0]:.1f}")
    print(f"{'tokens per second':34}{'wall':>9}{'CPU':>9}{'generate: wall':>16}{'CPU':>9}{'x (CPU)':>9}")
    await with_engine(engine, prompts(2, 0, 0), 2)
    for batch in (1, 8, 16):
        await compare_decoding(engine, model, batch)
    for shared in (0, CONTEXT - 50):
        await compare_prompts(engine, model, shared)
    await engine.aclose()


if __name__ == "__main__":
    torch.manual_seed(0)
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CACHE / "models" / "smollm2-135m-instruct"))
