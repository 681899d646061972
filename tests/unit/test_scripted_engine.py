"""The scripted engine gives what its script says, within an engine's laws."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from openforgerl.engines.scripted import Script, ScriptedAnswer, ScriptedEngine
from openforgerl.errors import EngineError
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest, Sampling


class Bytes:
    """One id a byte; 256 ends a turn."""

    stop_ids = (256,)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())


def request(number: int = 0, max_tokens: int | None = None) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"r{number}",
        session_id="s",
        prompt_ids=(1, 2, 3),
        sampling=Sampling(max_tokens=max_tokens),
        stop_ids=(256,),
    )


def engine(answer: str | ScriptedAnswer, context_length: int = 64) -> ScriptedEngine:
    script: Script = lambda _: answer  # noqa: E731
    return ScriptedEngine(script, Bytes(), context_length=context_length)


async def chunks(engine: ScriptedEngine, asked: GenerateRequest) -> list[GenerateChunk]:
    return [chunk async for chunk in engine.generate(asked)]


def ids(got: list[GenerateChunk]) -> tuple[int, ...]:
    return tuple(token for chunk in got for token in chunk.ids)


async def test_text_is_encoded_and_ends_with_the_end_of_turn_id() -> None:
    got = await chunks(engine("hey"), request())
    assert ids(got) == (*b"hey", 256)
    assert [chunk.finish for chunk in got] == [None, None, None, EngineFinish.STOP]
    assert {value for chunk in got for value in chunk.logprobs} == {-0.1}


async def test_exact_ids_and_logprobs_are_given_in_the_scripted_chunks() -> None:
    answer = ScriptedAnswer(ids=(7, 8, 9, 256), logprobs=(-1.0, -2.0, -3.0, -4.0), chunk_sizes=(1, 3))
    got = await chunks(engine(answer), request())
    assert [(chunk.ids, chunk.logprobs) for chunk in got] == [((7,), (-1.0,)), ((8, 9, 256), (-2.0, -3.0, -4.0))]


@pytest.mark.parametrize("limits", [{"max_tokens": 2}, {"context_length": 5}])
async def test_an_answer_is_cut_at_the_limit_and_says_length(limits: dict[str, int]) -> None:
    scripted = engine("long answer", context_length=limits.get("context_length", 64))
    got = await chunks(scripted, request(max_tokens=limits.get("max_tokens")))
    assert ids(got) == tuple(b"lo")
    assert got[-1].finish is EngineFinish.LENGTH


async def test_ids_behind_an_end_of_turn_id_are_not_sampled() -> None:
    got = await chunks(engine(ScriptedAnswer(ids=(5, 256, 6))), request())
    assert ids(got) == (5, 256)
    assert got[-1].finish is EngineFinish.STOP


async def test_abort_is_a_last_chunk_after_the_scripted_number_of_ids() -> None:
    got = await chunks(engine(ScriptedAnswer(text="hello", abort_after=3)), request())
    assert ids(got) == tuple(b"hel")
    assert got[-1].finish is EngineFinish.ABORT


@pytest.mark.parametrize("after", [0, 2, 6])
async def test_failure_comes_after_the_scripted_number_of_ids(after: int) -> None:
    answer = ScriptedAnswer(text="hello", fail_after=after, error=EngineError("out of memory"))
    call = engine(answer).generate(request())
    got = [await anext(call) for _ in range(after)]
    assert all(chunk.finish is None for chunk in got)
    with pytest.raises(EngineError, match="out of memory"):
        await anext(call)


async def test_a_gate_holds_the_answer_and_a_load_changes_the_version_of_later_ids() -> None:
    gate = asyncio.Event()
    scripted = engine(ScriptedAnswer(text="abc", chunk_sizes=(9,), gates={1: gate}))
    call = scripted.generate(request())
    first = await anext(call)
    await scripted.load_weights(Path("v1"), 1)
    gate.set()
    rest = [chunk async for chunk in call]
    assert (first.ids, first.policy_version) == (tuple(b"a"), 0)
    assert (ids(rest), rest[0].policy_version) == ((*b"bc", 256), 1)


async def test_closing_a_call_cancels_it() -> None:
    scripted = engine("hello")
    call = scripted.generate(request(4))
    await anext(call)
    assert scripted.running == {"r4"}
    await call.aclose()
    assert scripted.running == set()
    assert scripted.cancelled == ["r4"]


async def test_a_finished_call_is_not_cancelled() -> None:
    scripted = engine("hello")
    await chunks(scripted, request())
    assert scripted.cancelled == []


async def test_a_script_sees_the_request() -> None:
    seen: list[tuple[int, ...]] = []

    def script(asked: GenerateRequest) -> str:
        seen.append(asked.prompt_ids)
        return str(len(seen))

    scripted = ScriptedEngine(script, Bytes())
    assert ids(await chunks(scripted, request(1)))[:-1] == tuple(b"1")
    assert ids(await chunks(scripted, request(2)))[:-1] == tuple(b"2")
    assert seen == [(1, 2, 3), (1, 2, 3)]


async def test_a_prompt_without_room_is_refused_and_not_to_be_retried() -> None:
    with pytest.raises(EngineError, match="leaves no room in a context of 3") as raised:
        await chunks(engine("hello", context_length=3), request())
    assert not raised.value.retryable


async def test_a_closed_engine_refuses_calls() -> None:
    scripted = engine("hello")
    await scripted.aclose()
    with pytest.raises(EngineError, match="closed"):
        await chunks(scripted, request())
