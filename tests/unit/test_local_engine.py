"""The local engine from asyncio: exact log-probs whatever happens around a call, weights in place, faults, the end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from openforgerl.engines.local import LocalEngine, LocalEngineConfig
from openforgerl.engines.local_model import FULL_ATTENTION, PolicyModel, check_architecture
from openforgerl.errors import EngineError
from openforgerl.records import GenerateChunk, GenerateRequest, Sampling
from tiny_models import VOCABULARY, load_plain, reference_logprobs, write_tiny_model

DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The policy in three versions."""
    return [write_tiny_model(tmp_path_factory.mktemp(f"v{seed}"), seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def plain(folders: list[Path]) -> list[PreTrainedModel]:
    return [load_plain(folder) for folder in folders]


@asynccontextmanager
async def running(folder: Path, **config: Any) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine.load(folder, LocalEngineConfig(**config))
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield engine
    finally:
        await engine.aclose()


def request(
    prompt: list[int], answer: int, *, temperature: float = 1.0, stop_ids: tuple[int, ...] = ()
) -> GenerateRequest:
    sampling = Sampling(temperature=temperature, max_tokens=answer)
    return GenerateRequest(
        request_id="r", session_id="s", prompt_ids=tuple(prompt), sampling=sampling, stop_ids=stop_ids
    )


class Answer:
    def __init__(self, asked: GenerateRequest, chunks: list[GenerateChunk]) -> None:
        self.asked = asked
        self.chunks = chunks
        self.ids = [token for chunk in chunks for token in chunk.ids]
        self.logprobs = [value for chunk in chunks for value in chunk.logprobs]
        self.versions = [chunk.policy_version for chunk in chunks for _ in chunk.ids]

    def gap(self, plain: list[PreTrainedModel]) -> float:
        """Largest distance from the plain forward of the version that sampled each id."""
        temperature = self.asked.sampling.temperature or 1.0
        expected = {
            version: reference_logprobs(plain[version], self.asked.prompt_ids, self.ids, temperature)
            for version in set(self.versions)
        }
        return max(
            abs(got - expected[version][at])
            for at, (got, version) in enumerate(zip(self.logprobs, self.versions, strict=True))
        )


async def answer(engine: LocalEngine, asked: GenerateRequest) -> Answer:
    async with aclosing(engine.generate(asked)) as chunks:
        return Answer(asked, [chunk async for chunk in chunks])


def some(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]


async def session(engine: LocalEngine, seed: int, shared: list[int], told: asyncio.Semaphore) -> list[Answer]:
    """Three turns over a shared beginning, one of its calls given up on the way."""
    rng = random.Random(seed)
    prompt, answers = [*shared[: rng.randrange(20, len(shared))], *some(rng, 5)], []
    for turn in range(3):
        await asyncio.sleep(rng.random() * 0.02)
        if turn == seed % 3:
            given_up = engine.generate(request([*prompt, *some(rng, 3)], 50))
            await anext(given_up)
            await given_up.aclose()
        asked = request(prompt, rng.randrange(1, 25), temperature=rng.choice([0.0, 0.7, 1.0]), stop_ids=(2, 9))
        answers.append(await answer(engine, asked))
        told.release()
        prompt = [*prompt, *answers[-1].ids, *some(rng, rng.randrange(1, 12))]
    return answers


@pytest.mark.parametrize("drain_s", [60.0, 0.0])
async def test_logprobs_are_those_of_a_plain_forward_whatever_happens_around_a_call(
    folders: list[Path], plain: list[PreTrainedModel], drain_s: float
) -> None:
    shared, answered = some(random.Random(99), 80), asyncio.Semaphore(0)
    settings = {"max_batch": 5, "prefill_tokens": 48, "max_tokens_in_cache": 1400, "update_drain_s": drain_s}
    async with running(folders[0], **settings) as engine, asyncio.TaskGroup() as group:
        tasks = [group.create_task(session(engine, seed, shared, answered)) for seed in range(10)]
        for version in (1, 2):
            for _ in range(6):
                await answered.acquire()
            await engine.load_weights(folders[version], version)
    answers = [got for task in tasks for got in task.result()]
    assert max(got.gap(plain) for got in answers) < 1e-4
    assert {version for got in answers for version in got.versions} == {0, 1, 2}
    mixed = sum(len(set(got.versions)) > 1 for got in answers)
    assert (mixed == 0) == (drain_s > 0)
    counters = engine.counters
    assert counters["reused_tokens"] > 0
    assert counters["cancelled_calls"] > 0
    assert counters["failed_calls"] == 0


@pytest.mark.parametrize("kind", FULL_ATTENTION)
async def test_every_allowed_architecture_is_exact_in_a_batch_and_on_a_reused_prefix(kind: str, tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "granite": {"logits_scaling": 2.0}}
    folder = write_tiny_model(tmp_path, kind=kind, **settings.get(kind, {}))
    rng = random.Random(5)
    shared = some(rng, 40)
    async with running(folder, max_batch=4) as engine:
        asked = [request([*shared, *some(rng, 3 + at)], 10) for at in range(3)]
        answers = list(await asyncio.gather(*(answer(engine, each) for each in asked)))
        answers.append(await answer(engine, request([*asked[0].prompt_ids, *answers[0].ids, 7, 8], 10)))
    model = load_plain(folder)
    assert engine.counters["reused_tokens"] >= 3 * 40
    assert max(got.gap([model]) for got in answers) < 1e-4


@pytest.mark.parametrize(
    ("kind", "config", "named"),
    [
        ("mistral", {"sliding_window": 16}, "sliding_window of 16"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "sliding_attention"),
        ("gemma2", {}, "'gemma2' is not known to be full attention"),
        ("mamba", {}, "'mamba' is not known to be full attention"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_a_model_with_more_than_full_attention_is_refused_by_name(
    kind: str, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(EngineError, match=named):
        check_architecture(AutoConfig.for_model(kind, num_hidden_layers=2, **config))


async def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"{tmp_path} has no config.json"):
        LocalEngine.load(tmp_path, LocalEngineConfig())


async def test_an_update_waits_for_calls_in_flight_and_new_calls_wait_for_it(
    folders: list[Path], plain: list[PreTrainedModel]
) -> None:
    async with running(folders[0]) as engine:
        before = engine.generate(request(some(random.Random(1), 30), 120))
        first = await anext(before)
        async with asyncio.TaskGroup() as group:
            update = group.create_task(engine.load_weights(folders[1], 1))
            await asyncio.sleep(0.02)
            after = group.create_task(answer(engine, request(some(random.Random(2), 30), 5)))
            old = Answer(request(some(random.Random(1), 30), 120), [first, *[chunk async for chunk in before]])
        assert update.done()
    assert set(old.versions) == {0}
    assert set(after.result().versions) == {1}
    assert max(old.gap(plain), after.result().gap(plain)) < 1e-4


async def test_set_weights_copies_in_place_and_takes_a_trainers_state(
    folders: list[Path], plain: list[PreTrainedModel]
) -> None:
    model = load_plain(folders[0])
    where = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    engine = LocalEngine(PolicyModel(model, slots=4), LocalEngineConfig(max_batch=4))
    await engine.set_weights(
        {name: weight.clone().requires_grad_() for name, weight in plain[1].state_dict().items()}, 1
    )
    got = await answer(engine, request([5, 6, 7], 20))
    await engine.aclose()
    assert got.gap(plain) < 1e-4
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == where


async def test_tied_weights_may_come_once_or_twice(tmp_path: Path) -> None:
    first = write_tiny_model(tmp_path / "a", tie_word_embeddings=True)
    second = load_plain(write_tiny_model(tmp_path / "b", seed=1, tie_word_embeddings=True))
    twice = second.state_dict()
    once = {name: tensor for name, tensor in twice.items() if name != "lm_head.weight"}
    async with running(first) as engine:
        await engine.load_weights(tmp_path / "b", 1)
        for version, state in enumerate((once, twice), start=2):
            await engine.set_weights(state, version)
            got = await answer(engine, request([5, 6, 7], 10))
            assert got.gap([second] * 4) < 1e-4


def without(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.items() if "q_proj" not in name}


def with_more(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**state, "adapter.weight": torch.zeros(2)}


def of_another_shape(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**state, "model.norm.weight": torch.zeros(7)}


def not_finite(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**state, "model.norm.weight": state["model.norm.weight"] * float("inf")}


@pytest.mark.parametrize(
    ("change", "named"),
    [(without, "q_proj"), (with_more, "adapter.weight"), (of_another_shape, r"\(7,\)"), (not_finite, "not finite")],
)
async def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(
    folders: list[Path],
    plain: list[PreTrainedModel],
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
    named: str,
) -> None:
    async with running(folders[0]) as engine:
        with pytest.raises(EngineError, match=named):
            await engine.set_weights(change(dict(plain[1].state_dict())), 1)
        assert engine.policy_version == 0
        assert (await answer(engine, request([5, 6, 7], 10))).gap(plain) < 1e-4


async def test_a_folder_without_weights_is_refused_and_the_old_ones_stay(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing")
    async with running(folders[0]) as engine:
        with pytest.raises(EngineError, match=r"no \*\.safetensors file") as refused:
            await engine.load_weights(tmp_path, 1)
        assert (refused.value.http_status, refused.value.retryable) == (400, False)
        with pytest.raises(EngineError, match=r"model\.safetensors cannot be read"):
            await engine.load_weights(tmp_path / "broken", 1)
        assert (await answer(engine, request([5, 6, 7], 10))).versions[0] == 0


async def fails(call: Awaitable[Answer]) -> str:
    with pytest.raises(EngineError) as raised:
        await call
    return str(raised.value)


async def test_a_failure_in_the_thread_fails_the_calls_in_flight_and_no_later_ones(
    folders: list[Path], plain: list[PreTrainedModel]
) -> None:
    model = load_plain(folders[0])
    engine = LocalEngine(PolicyModel(model, slots=4), LocalEngineConfig(max_batch=4))
    await answer(engine, request([5, 6, 7, 8], 3))

    def out_of_memory(*_: object) -> None:
        raise MemoryError("no room for a tensor")

    hook = model.register_forward_pre_hook(out_of_memory)
    said = await asyncio.gather(*(fails(answer(engine, request([5, 6, at], 10))) for at in range(3)))
    hook.remove()
    assert all("MemoryError: no room for a tensor" in each for each in said)
    got = await answer(engine, request([5, 6, 7, 8, 9], 10))
    await engine.aclose()
    assert got.gap(plain) < 1e-4


async def test_a_failure_in_the_thread_leaves_waiting_calls_alone(
    folders: list[Path], plain: list[PreTrainedModel]
) -> None:
    model = load_plain(folders[0])
    engine = LocalEngine(PolicyModel(model, slots=1), LocalEngineConfig(max_batch=1))
    both_are_in, steps = threading.Event(), 0

    def fail_in_the_second_step(*_: object) -> None:
        nonlocal steps
        steps += 1
        both_are_in.wait(DEADLINE_S)
        if steps == 2:
            raise RuntimeError("once")

    model.register_forward_pre_hook(fail_in_the_second_step)
    first = asyncio.create_task(fails(answer(engine, request([5, 6], 5))))
    second = asyncio.create_task(answer(engine, request([7, 8], 5)))
    await asyncio.sleep(0)
    both_are_in.set()
    assert "RuntimeError: once" in await first
    assert (await second).gap(plain) < 1e-4
    await engine.aclose()


async def test_a_cancelled_task_frees_its_place(folders: list[Path]) -> None:
    begun = asyncio.Event()

    async def long_call(engine: LocalEngine) -> None:
        async with aclosing(engine.generate(request([5, 6], 480))) as chunks:
            async for _ in chunks:
                begun.set()

    async with running(folders[0], max_batch=1) as engine:
        task = asyncio.create_task(long_call(engine))
        await begun.wait()
        task.cancel()
        got = await answer(engine, request([7, 8], 3))
        assert got.ids
        assert engine.counters["cancelled_calls"] == 1
        assert engine.counters["sampled_tokens"] < 480


async def test_the_loop_stays_responsive_while_the_engine_computes(folders: list[Path]) -> None:
    beats = 0
    async with running(folders[0]) as engine:
        task = asyncio.create_task(answer(engine, request([5, 6], 100)))
        while not task.done():
            await asyncio.wait({task}, timeout=0.001)
            beats += 1
    assert beats > 10


async def test_chunks_that_pile_up_come_as_one(folders: list[Path], plain: list[PreTrainedModel]) -> None:
    asked = GenerateRequest(
        request_id="r", session_id="s", prompt_ids=(5, 6), sampling=Sampling(max_tokens=40, seed=1), stop_ids=()
    )
    async with running(folders[0]) as engine:
        call = engine.generate(asked)
        first = await anext(call)
        await answer(engine, replace(asked, sampling=Sampling(max_tokens=60)))
        rest = [chunk async for chunk in call]
    assert len(rest) == 1
    assert len(rest[0].ids) == 40 - len(first.ids)
    assert Answer(asked, [first, *rest]).gap(plain) < 1e-4


@pytest.mark.parametrize("token", [-1, VOCABULARY])
async def test_an_id_outside_the_vocabulary_is_refused(folders: list[Path], token: int) -> None:
    async with running(folders[0]) as engine:
        assert f"id {token} is not in a vocabulary of {VOCABULARY}" in await fails(
            answer(engine, request([5, token], 4))
        )


async def test_bfloat16_runs(folders: list[Path]) -> None:
    async with running(folders[0], dtype="bfloat16") as engine:
        got = await asyncio.gather(*(answer(engine, request([5, 6, at], 10)) for at in range(3)))
        await engine.load_weights(folders[1], 1)
        assert all(each.ids for each in got)


async def test_closing_ends_the_thread_and_a_waiting_update(folders: list[Path]) -> None:
    engine = LocalEngine.load(folders[0], LocalEngineConfig())
    call = engine.generate(request([5, 6], 480))
    await anext(call)
    update = asyncio.create_task(engine.load_weights(folders[1], 1))
    await asyncio.sleep(0.02)
    await engine.aclose()
    with pytest.raises(EngineError, match="the weights were not loaded"):
        await update
    await call.aclose()
