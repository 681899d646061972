"""The engine contract, run on every member: a new engine is tested by adding how to make it to MEMBERS."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from engine_servers import EngineServer, Json, Script, Step, honest, honest_generation
from openforgerl.engines.base import Engine
from openforgerl.engines.local import LocalEngine, LocalEngineConfig
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.scripted import ScriptedEngine
from openforgerl.engines.sglang import SglangEngine
from openforgerl.engines.vllm import VllmEngine
from openforgerl.errors import EngineAborted, EngineError
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest, Sampling
from tiny_models import VOCABULARY, write_tiny_model

CONTEXT = 512
STOP = 2
DEADLINE_S = 30.0


class Letters:
    """A codec of one id a letter, for the scripted member."""

    stop_ids = (STOP,)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())


def scripted(folder: Path) -> Engine:
    """Answers with as many letters as the prompt's first id says."""
    return ScriptedEngine(lambda request: "a" * request.prompt_ids[0], Letters(), context_length=CONTEXT)


def local(folder: Path) -> Engine:
    return LocalEngine.load(folder, LocalEngineConfig(context_length=CONTEXT, max_batch=4))


def stalling(script: Script) -> Script:
    """A long answer waits for ever behind its beginning, so that it is surely in flight."""

    def steps(body: Json) -> Iterator[Step]:
        for place, step in enumerate(script(body)):
            if place == 100:
                yield asyncio.Event()
            yield step

    return steps


async def vllm(folder: Path) -> tuple[Engine, EngineServer]:
    server = await EngineServer(script=stalling(honest)).start()
    return await VllmEngine.open(folder, RemoteEngineConfig(base_url=server.url)), server


async def sglang(folder: Path) -> tuple[Engine, EngineServer]:
    server = await EngineServer(script=stalling(honest_generation)).start()
    return await SglangEngine.open(folder, RemoteEngineConfig(base_url=server.url)), server


MEMBERS: dict[str, Callable[[Path], Engine]] = {"scripted": scripted, "local": local}
SERVERS = {"vllm": vllm, "sglang": sglang}
"""Members over a server of ours that speaks their wire."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("policy"))


@pytest.fixture(params=[*MEMBERS, *SERVERS])
async def engine(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Engine]:
    if request.param in MEMBERS:
        made = MEMBERS[request.param](folder)
        yield made
        await made.aclose()
        return
    made, server = await SERVERS[request.param](folder)
    yield made
    await made.aclose()
    await server.stop()


def ask(
    first: int = 20,
    *,
    length: int = 3,
    max_tokens: int | None = 8,
    stop_ids: tuple[int, ...] = (STOP,),
    name: str = "r",
) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        session_id="s",
        prompt_ids=(first, *(100 + at % 50 for at in range(length - 1))),
        sampling=Sampling(temperature=1.0, max_tokens=max_tokens),
        stop_ids=stop_ids,
    )


async def rest(call: AsyncGenerator[GenerateChunk, None]) -> list[GenerateChunk]:
    async with asyncio.timeout(DEADLINE_S), aclosing(call) as chunks:
        return [chunk async for chunk in chunks]


async def answer(engine: Engine, request: GenerateRequest) -> list[GenerateChunk]:
    return await rest(engine.generate(request))


def ids(chunks: list[GenerateChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


async def test_every_id_has_one_logprob_that_is_a_finite_number_not_above_zero(engine: Engine) -> None:
    chunks = await answer(engine, ask())
    values = [value for chunk in chunks for value in chunk.logprobs]
    assert len(values) == len(ids(chunks)) > 0
    assert all(math.isfinite(value) and value <= 0 for value in values)
    assert engine.logprob_kind in ("sampled", "scripted")


async def test_exactly_the_last_chunk_has_a_finish(engine: Engine) -> None:
    chunks = await answer(engine, ask())
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_max_tokens_is_the_most_that_is_sampled_and_is_told_as_length(engine: Engine) -> None:
    chunks = await answer(engine, ask(max_tokens=5, stop_ids=()))
    assert len(ids(chunks)) == 5
    assert chunks[-1].finish is EngineFinish.LENGTH


async def test_the_context_ends_an_answer_and_is_told_as_length(engine: Engine) -> None:
    chunks = await answer(engine, ask(first=500, length=CONTEXT - 4, max_tokens=None, stop_ids=()))
    assert len(ids(chunks)) == 4
    assert chunks[-1].finish is EngineFinish.LENGTH


async def test_any_stop_id_ends_the_answer_and_is_its_last_id(engine: Engine) -> None:
    everything = tuple(range(VOCABULARY))
    chunks = await answer(engine, ask(stop_ids=everything))
    assert len(ids(chunks)) == 1
    assert chunks[-1].finish is EngineFinish.STOP


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
async def test_a_prompt_without_room_for_an_answer_is_refused_for_good(engine: Engine, length: int) -> None:
    with pytest.raises(EngineError, match=str(length)) as refused:
        await answer(engine, ask(length=length))
    assert (refused.value.retryable, refused.value.code) == (False, "context_length_exceeded")


@pytest.mark.parametrize(("prompt", "max_tokens"), [((), 4), ((5,), 0)])
async def test_a_request_that_asks_for_nothing_is_refused_for_good(
    engine: Engine, prompt: tuple[int, ...], max_tokens: int
) -> None:
    asked = GenerateRequest(
        request_id="r", session_id="s", prompt_ids=prompt, sampling=Sampling(max_tokens=max_tokens), stop_ids=(STOP,)
    )
    with pytest.raises(EngineError) as refused:
        await answer(engine, asked)
    assert not refused.value.retryable


async def test_concurrent_calls_all_end_each_with_its_own_length(engine: Engine) -> None:
    wanted = [1, 7, 3, 5, 2, 6, 4, 8]
    calls = [ask(max_tokens=count, stop_ids=(), name=f"r{count}") for count in wanted]
    answers = await asyncio.gather(*(answer(engine, call) for call in calls))
    assert [len(ids(chunks)) for chunks in answers] == wanted


async def test_a_call_that_is_closed_early_leaves_the_engine_usable(engine: Engine) -> None:
    for _ in range(6):
        call = engine.generate(ask(first=500, max_tokens=None, stop_ids=()))
        await anext(call)
        await call.aclose()
    assert len(ids(await answer(engine, ask(max_tokens=4, stop_ids=())))) == 4


async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_engine_usable(engine: Engine) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer(engine, ask(first=500, max_tokens=None, stop_ids=()))) for _ in range(9)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
    assert len(ids(await answer(engine, ask(max_tokens=4, stop_ids=())))) == 4


async def test_new_weights_change_the_version_of_what_is_sampled_after_them(engine: Engine, folder: Path) -> None:
    before = await answer(engine, ask())
    await engine.load_weights(folder, 7)
    after = await answer(engine, ask())
    assert {chunk.policy_version for chunk in before} == {0}
    assert engine.policy_version == 7
    assert {chunk.policy_version for chunk in after} == {7}


async def test_a_call_in_flight_when_the_engine_is_closed_ends_as_aborted(engine: Engine) -> None:
    call = engine.generate(ask(first=500, max_tokens=None, stop_ids=()))
    await anext(call)
    await engine.aclose()
    with pytest.raises(EngineAborted):
        await rest(call)


async def test_a_closed_engine_refuses_calls_and_weights_and_may_be_closed_again(engine: Engine, folder: Path) -> None:
    await engine.aclose()
    await engine.aclose()
    with pytest.raises(EngineError, match="closed"):
        await answer(engine, ask())
    with pytest.raises(EngineError, match="closed"):
        await engine.load_weights(folder, 1)
