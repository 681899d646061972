"""The official OpenAI SDK against a real proxy: what it gets, and what the store holds by then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.errors import EngineError
from openforgerl.records import Completion, Delivered, Finish, Sampling
from proxy_world import (
    BASH,
    assistant,
    call_text,
    in_turn,
    lawful,
    odd,
    odd_ids,
    proxy,
    read_into,
    spelled_as_sampled,
    tool_result,
)

USER = {"role": "user", "content": "hi"}


async def test_a_plain_answer_is_recorded_with_its_ids(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello there"))) as world:
        access = await world.open()
        answer = await world.client(access).chat.completions.create(model="gpt-5", messages=[USER])
        assert answer.choices[0].message.content == "hello there"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.model == "gpt-5"
        (call,) = world.store.calls(access.session_id)
        assert call.sampled_ids == odd_ids("hello there")
        assert (call.completion, call.finish, call.model_asked) == (Completion.COMPLETE, Finish.STOP, "gpt-5")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(call.sampled_ids)
        assert answer.usage.prompt_tokens == len(call.prompt)
        lawful(await world.settled(access))
        assert world.store.calls(access.session_id)[0].delivered == Delivered(state="full")


async def test_a_streamed_answer_is_recorded_with_its_ids(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello there"))) as world:
        access = await world.open()
        stream = await world.client(access).chat.completions.create(model="m", messages=[USER], stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello there"
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
        (call,) = await world.settled(access)
        assert call.sampled_ids == odd_ids("hello there")
        assert call.delivered == Delivered(state="full")


async def test_streamed_usage_comes_once_at_the_end(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("hello")) as world:
        access = await world.open()
        stream = await world.client(access).chat.completions.create(
            model="m", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
        usages = [chunk.usage async for chunk in stream]
        (call,) = await world.settled(access)
        assert [usage for usage in usages if usage] == usages[-1:]
        assert usages[-1] is not None
        assert (usages[-1].prompt_tokens, usages[-1].completion_tokens) == (len(call.prompt), len(call.sampled_ids))


async def test_parallel_tool_calls_go_out_as_sampled_and_come_back_as_ids(tmp_path: Path) -> None:
    text = "Two. " + call_text('{"b":1.0,  "a": "x"}') + "\n" + call_text("{}")
    async with proxy(tmp_path, in_turn(odd(text), odd("done"))) as world:
        access = await world.open()
        client = world.client(access)
        first = await client.chat.completions.create(model="m", messages=[USER], tools=[BASH])
        calls = first.choices[0].message.tool_calls or []
        assert first.choices[0].finish_reason == "tool_calls"
        assert [call.function.arguments for call in calls] == ['{"b":1.0,  "a": "x"}', "{}"]
        assert len({call.id for call in calls}) == 2
        assert all(call.id.isalnum() for call in calls)
        history = [USER, assistant(first), *(tool_result(call.id, "ok") for call in calls)]
        await client.chat.completions.create(model="m", messages=history, tools=[BASH])
        recorded = await world.settled(access)
        assert spelled_as_sampled(recorded, recorded[1], recorded[0])
        assert len(lawful(recorded)) == 1


async def test_streamed_tool_calls_equal_plain_ones(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(call_text()))) as world:
        access = await world.open()
        async with world.client(access).chat.completions.stream(model="m", messages=[USER], tools=[BASH]) as stream:
            async for _ in stream:
                pass
            answer = await stream.get_final_completion()
        (call,) = await world.settled(access)
        sent = (answer.choices[0].message.tool_calls or [])[0]
        assert (sent.id, sent.function.arguments) == (call.answer.tool_calls[0].id, call.answer.tool_calls[0].arguments)
        assert answer.choices[0].finish_reason == "tool_calls"


async def test_length_and_stop_strings_are_finish_reasons(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("one two three"), odd("one STOP three"))) as world:
        access = await world.open()
        client = world.client(access)
        cut = await client.chat.completions.create(model="m", messages=[USER], max_tokens=3)
        stopped = await client.chat.completions.create(model="m", messages=[USER], stop=["STOP"])
        assert (cut.choices[0].finish_reason, cut.choices[0].message.content) == ("length", "one")
        assert (stopped.choices[0].finish_reason, stopped.choices[0].message.content) == ("stop", "one ")
        by_length, by_string = await world.settled(access)
        assert (by_length.finish, by_string.finish) == (Finish.LENGTH, Finish.STOP_STRING)
        assert by_string.stop_string == "STOP"
        assert by_string.sampled_ids == odd_ids("one STOP three")[: len(by_string.sampled_ids)]
        assert world.engine.cancelled == [by_string.call_id]


async def test_pins_win_and_both_are_recorded(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open(sampling=Sampling(temperature=0.7, max_tokens=50))
        client = world.client(access)
        await client.chat.completions.create(model="m", messages=[USER], temperature=0, top_p=0.9, max_tokens=900)
        await client.chat.completions.create(model="m", messages=[USER])
        pinned, silent = await world.settled(access)
        assert pinned.sampling_asked == Sampling(temperature=0, top_p=0.9, max_tokens=900)
        assert pinned.sampling_used == Sampling(temperature=0.7, top_p=0.9, max_tokens=50)
        assert silent.sampling_asked == Sampling()
        assert silent.sampling_used == Sampling(temperature=0.7, max_tokens=50)
        assert [request.sampling for request in world.engine.requests] == [pinned.sampling_used, silent.sampling_used]


async def test_without_pins_a_missing_temperature_is_one_and_the_context_caps(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), context_length=300) as world:
        access = await world.open()
        await world.client(access).chat.completions.create(model="m", messages=[USER])
        (call,) = await world.settled(access)
        assert call.sampling_used == Sampling(temperature=1.0, max_tokens=300 - len(call.prompt))


async def test_bad_requests_are_named_and_nothing_is_recorded(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        with pytest.raises(openai.BadRequestError) as caught:
            await world.client(access).chat.completions.create(model="m", messages=[USER], n=2)
        assert (caught.value.param, caught.value.code) == ("n", "unsupported_value")
        assert world.gateway.status(access.session_id).counters == {"requests_refused": 1}
        assert await world.settled(access) == ()


async def test_wrong_keys_and_dead_sessions(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        one, two = await world.open(), await world.open()
        wrong: Any = world.client(one, api_key=two.key)
        with pytest.raises(openai.AuthenticationError) as caught:
            await wrong.chat.completions.create(model="m", messages=[USER])
        assert caught.value.code == "invalid_api_key"
        await world.settled(one)
        with pytest.raises(openai.APIStatusError) as gone:
            await world.client(one).chat.completions.create(model="m", messages=[USER])
        assert (gone.value.status_code, gone.value.code) == (410, "session_closed")
        listing = await world.client(two).models.list()
        assert [model.id for model in listing.data] == ["policy"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_context_is_one_recorded_failure_in_words_that_harnesses_know(
    tmp_path: Path, stream: bool
) -> None:
    async with proxy(tmp_path, in_turn("x"), context_length=40) as world:
        access = await world.open()
        long = [{"role": "user", "content": "word " * 100}]
        with pytest.raises(openai.BadRequestError, match="maximum context length is 40 tokens") as caught:
            await world.client(access).chat.completions.create(model="m", messages=long, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert world.gateway.status(access.session_id).counters["context_full"] == 1
        (call,) = await world.settled(access)
        assert (call.completion, call.error, call.sampled_ids) == (Completion.ERROR, "context_length_exceeded", ())
        assert lawful((call,)) == ()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["abort", "error"])
async def test_an_engine_fault_before_the_first_id_is_a_503_that_the_sdk_retries(
    tmp_path: Path, fault: str, stream: bool
) -> None:
    failing = ScriptedAnswer(text="x", abort_after=0) if fault == "abort" else ScriptedAnswer(text="x", fail_after=0)
    async with proxy(tmp_path, in_turn(failing, odd("second try"))) as world:
        access = await world.open()
        client = world.client(access, max_retries=2)
        answer: Any = await client.chat.completions.create(model="m", messages=[USER], stream=stream)
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
        else:
            text = answer.choices[0].message.content
        assert text == "second try"
        failed, complete = await world.settled(access)
        assert failed.completion == (Completion.ENGINE_ABORTED if fault == "abort" else Completion.ERROR)
        assert (complete.completion, complete.labels["x-stainless-retry-count"]) == (Completion.COMPLETE, "1")
        lawful((failed, complete))


async def test_an_abort_in_mid_stream_is_an_error_event_and_a_masked_call(tmp_path: Path) -> None:
    broken = ScriptedAnswer(ids=odd_ids("hello there"), abort_after=5)
    async with proxy(tmp_path, in_turn(broken)) as world:
        access = await world.open()
        stream = await world.client(access).chat.completions.create(model="m", messages=[USER], stream=True)
        got: list[str] = []
        with pytest.raises(openai.APIError, match="dropped the call"):
            await read_into(got, stream)
        assert "".join(got) == "hello"
        (call,) = await world.settled(access)
        assert (call.completion, call.finish) == (Completion.ENGINE_ABORTED, None)
        assert call.sampled_ids == odd_ids("hello there")[:5]
        assert call.delivered == Delivered(state="prefix", count=5)
        (row,) = lawful((call,))
        assert sum(row.loss_mask) == 0


async def test_an_engine_that_raises_what_it_likes_fails_its_call_only(tmp_path: Path) -> None:
    def script(request: object) -> ScriptedAnswer:
        if len(world.engine.requests) == 1:
            raise ZeroDivisionError
        return odd("fine")

    async with proxy(tmp_path, script) as world:
        access = await world.open()
        client = world.client(access)
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="m", messages=[USER])
        await client.chat.completions.create(model="m", messages=[USER])
        failed, fine = await world.settled(access)
        assert (failed.completion, fine.completion) == (Completion.ERROR, Completion.COMPLETE)
        assert "ZeroDivisionError" in failed.error


async def test_a_refusal_of_the_engine_is_not_retried(tmp_path: Path) -> None:
    error = EngineError("bad request")
    error.http_status, error.retryable = 400, False
    async with proxy(tmp_path, in_turn(ScriptedAnswer(text="x", fail_after=0, error=error))) as world:
        access = await world.open()
        with pytest.raises(openai.BadRequestError):
            await world.client(access, max_retries=3).chat.completions.create(model="m", messages=[USER])
        assert len(world.engine.requests) == 1


async def test_a_call_that_takes_too_long_is_cancelled_and_answered_504(tmp_path: Path) -> None:
    slow = ScriptedAnswer(ids=odd_ids("hello"), gates={2: asyncio.Event()})
    async with proxy(tmp_path, in_turn(slow), call_timeout_s=0.2) as world:
        access = await world.open()
        with pytest.raises(openai.APIStatusError) as caught:
            await world.client(access).chat.completions.create(model="m", messages=[USER])
        assert (caught.value.status_code, caught.value.code) == (504, "timeout")
        (call,) = await world.settled(access)
        assert (call.completion, len(call.sampled_ids)) == (Completion.ERROR, 2)
        assert "no answer within 0.2 s" in call.error
        assert world.engine.cancelled == [call.call_id]


async def test_a_looping_agent_is_ended_by_the_cap_without_retries(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), max_calls_per_session=2) as world:
        access = await world.open()
        client = world.client(access, max_retries=3)
        for _ in range(2):
            await client.chat.completions.create(model="m", messages=[USER])
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await client.chat.completions.create(model="m", messages=[USER])
        assert caught.value.code == "calls_exhausted"
        assert len(world.engine.requests) == 2
        assert world.gateway.status(access.session_id).counters["calls_exhausted"] == 1


async def test_the_blocking_sdk_works_as_well(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()

        def ask() -> str | None:
            with OpenAI(base_url=f"{world.server.url}/s/{access.session_id}", api_key=access.key) as client:
                return client.chat.completions.create(model="", messages=[USER]).choices[0].message.content  # type: ignore[list-item]

        assert await asyncio.to_thread(ask) == "hello"


async def test_the_policy_version_of_every_run_of_ids_is_recorded(tmp_path: Path) -> None:
    gate = asyncio.Event()
    answer = ScriptedAnswer(ids=odd_ids("hello"), gates={2: gate})
    async with proxy(tmp_path, in_turn(answer)) as world:
        access = await world.open()
        stream = await world.client(access).chat.completions.create(model="m", messages=[USER], stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == "e":
                await world.gateway.load_weights(tmp_path, 7)
                gate.set()
        (call,) = await world.settled(access)
        assert [(run.policy_version, run.count) for run in call.versions] == [(0, 2), (7, 4)]
        lawful((call,))
