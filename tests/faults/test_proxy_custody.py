"""Recording is a commit: no terminal event before it, no answer without it, one answer for a known retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.errors import StoreError
from openforgerl.proxy.access import SessionAccess
from openforgerl.records import (
    Completion,
    Delivered,
    GenerateChunk,
    GenerateRequest,
    Message,
    ModelRequest,
    RecordedCall,
    Role,
)
from openforgerl.store.sqlite import Store
from proxy_world import BASH, Gate, World, assistant, call_text, in_turn, lawful, odd, proxy, read_into

USER = {"role": "user", "content": "hi"}
BODY = {"model": "m", "messages": [USER], "tools": [BASH]}


class GatedStore(Store):
    """A real store whose commits wait for a gate, or fail."""

    gate: asyncio.Event
    entered: asyncio.Event
    failing = False

    async def commit(self, call: RecordedCall, images: Mapping[str, bytes] | None = None) -> None:
        self.entered.set()
        await self.gate.wait()
        if self.failing:
            raise StoreError("disk full")
        await super().commit(call, images)


@asynccontextmanager
async def gated_proxy(folder: Path, *answers: Any, **config: Any) -> AsyncIterator[tuple[World, GatedStore]]:
    async with proxy(folder, in_turn(*answers), store_class=GatedStore, **config) as world:
        store = world.store
        assert isinstance(store, GatedStore)
        store.gate, store.entered = asyncio.Event(), asyncio.Event()
        yield world, store


async def lines(response: Any) -> AsyncIterator[str]:
    async for line in response.content:
        if line.strip():
            yield line.decode().strip()


async def test_the_terminal_event_waits_for_the_commit(tmp_path: Path) -> None:
    async with gated_proxy(tmp_path, odd(call_text())) as (world, store):
        access = await world.open()
        async with world.post(access, {**BODY, "stream": True}) as response:
            got: list[str] = []
            reading = asyncio.create_task(_collect(got, response))
            await asyncio.wait_for(store.entered.wait(), 10)
            await asyncio.sleep(0.1)
            assert got, "what is not terminal flows"
            assert not [line for line in got if '"finish_reason":"' in line or "[DONE]" in line]
            assert world.store.calls(access.session_id) == ()
            store.gate.set()
            await reading
        assert got[-1] == "data: [DONE]"
        assert len(world.store.calls(access.session_id)) == 1


async def _collect(got: list[str], response: Any) -> None:
    async for line in lines(response):
        got.append(line)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failed_commit_fails_the_call(tmp_path: Path, stream: bool) -> None:
    async with gated_proxy(tmp_path, odd("first"), odd("second")) as (world, store):
        access = await world.open()
        store.failing = True
        store.gate.set()
        client = world.client(access)
        got: list[str] = []
        with pytest.raises(openai.APIError, match="could not be recorded") as caught:
            await _ask_into(got, client, stream)
        assert caught.value.code == "not_recorded"
        if not stream:
            assert isinstance(caught.value, openai.APIStatusError)
            assert caught.value.status_code == 503
        assert world.store.calls(access.session_id) == ()
        assert len(world.store.intents(access.session_id)) == 1
        assert world.gateway.status(access.session_id).counters["store_errors"] == 1
        store.failing = False
        await _ask_into(got, client, stream)
        assert [call.answer.text for call in await world.settled(access)] == ["second"]


async def _ask_into(got: list[str], client: Any, stream: bool) -> None:
    answer = await client.chat.completions.create(model="m", messages=[USER], stream=stream)
    if stream:
        await read_into(got, answer)


async def test_a_commit_that_hangs_fails_the_call_at_its_deadline(tmp_path: Path) -> None:
    async with gated_proxy(tmp_path, odd("x"), commit_timeout_s=0.1) as (world, _):
        access = await world.open()
        async with world.post(access, BODY) as response:
            assert response.status == 503
        assert world.gateway.status(access.session_id).counters["store_errors"] == 1


async def lose_the_answer(world: World, store: GatedStore, access: SessionAccess, **headers: str) -> None:
    """Send a streamed call and hang up while it is being committed."""
    async with world.post(access, {**BODY, "stream": True}, **headers) as response:
        await asyncio.wait_for(store.entered.wait(), 10)
        response.close()
    await world.connected(access, 0)
    store.gate.set()
    await world.recorded(access.session_id, 1)


async def test_an_answer_lost_before_its_terminal_event_is_replayed_once(tmp_path: Path) -> None:
    async with gated_proxy(tmp_path, odd(call_text()), odd("another")) as (world, store):
        access = await world.open()
        await lose_the_answer(world, store, access)
        client = world.client(access)
        again: Any = await client.chat.completions.create(**BODY)
        (call,) = world.store.calls(access.session_id)
        assert assistant(again)["tool_calls"][0]["id"] == call.answer.tool_calls[0].id
        assert again.id == f"chatcmpl-{call.call_id}"
        anew: Any = await client.chat.completions.create(**BODY)
        assert anew.choices[0].message.content == "another"
        assert world.gateway.status(access.session_id).counters["retries_answered_again"] == 1
        calls = await world.settled(access)
        assert [each.delivered for each in calls] == [Delivered(state="full")] * 2
        assert len(calls) == 2
        lawful(calls)


async def test_the_replay_is_found_by_the_assembler_as_the_same_turn(tmp_path: Path) -> None:
    async with gated_proxy(tmp_path, odd(call_text()), odd("done")) as (world, store):
        access = await world.open()
        await lose_the_answer(world, store, access)
        client = world.client(access)
        answer = assistant(await client.chat.completions.create(**BODY))  # type: ignore[call-overload]
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "a"}
        await client.chat.completions.create(model="m", tools=[BASH], messages=[USER, answer, result])  # type: ignore[list-item]
        calls = await world.settled(access)
        assert len(lawful(calls)) == 1
        assert "reencoded_turns" not in calls[1].counters


@pytest.mark.parametrize(
    ("headers", "replayed"),
    [
        ({}, False),
        ({"x_stainless_retry_count": "0"}, False),
        ({"x_stainless_retry_count": "1"}, True),
        ({"idempotency_key": "k1"}, True),
        ({"idempotency_key": "k2"}, False),
    ],
)
async def test_a_delivered_answer_is_replayed_to_a_known_retry_only(
    tmp_path: Path, headers: dict[str, str], replayed: bool
) -> None:
    async with proxy(tmp_path, in_turn(odd("one"), odd("two"), odd("three"))) as world:
        access = await world.open()
        async with world.post(access, BODY, idempotency_key="k1") as response:
            first = await response.json()
        async with world.post(access, BODY, **headers) as response:
            second = await response.json()
        assert (second["id"] == first["id"]) is replayed
        async with world.post(access, BODY, **headers) as response:
            third = await response.json()
        assert third["id"] != first["id"], "an answer is replayed once"


async def test_the_same_key_on_another_request_is_a_new_sample(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("one"), odd("two"))) as world:
        access = await world.open()
        for text, content in (("one", "hi"), ("two", "ho")):
            body = {**BODY, "messages": [{"role": "user", "content": content}]}
            async with world.post(access, body, idempotency_key="k") as response:
                assert (await response.json())["choices"][0]["message"]["content"] == text


async def test_a_retry_of_a_failed_call_is_sampled_anew_beside_an_equal_delivered_one(tmp_path: Path) -> None:
    failing = ScriptedAnswer(text="x", fail_after=0)
    async with proxy(tmp_path, in_turn(odd("one"), failing, odd("two"))) as world:
        access = await world.open()
        client = world.client(access, max_retries=1)
        answers: list[Any] = [await client.chat.completions.create(**BODY) for _ in range(2)]  # type: ignore[call-overload]
        assert [answer.choices[0].message.content for answer in answers] == ["one", "two"]


async def test_a_known_retry_joins_the_call_that_is_still_running(tmp_path: Path) -> None:
    gate = asyncio.Event()
    slow = ScriptedAnswer(ids=odd("slow answer").ids, gates={4: gate})
    async with proxy(tmp_path, in_turn(slow, odd("never"))) as world:
        access = await world.open()

        async def ask(**headers: str) -> Any:
            async with world.post(access, BODY, **headers) as response:
                return await response.json()

        first = asyncio.create_task(ask())
        await world.connected(access, 1)
        second = asyncio.create_task(ask(x_stainless_retry_count="1"))
        await world.connected(access, 2)
        first.cancel()
        gate.set()
        assert (await second)["choices"][0]["message"]["content"] == "slow answer"
        (call,) = await world.settled(access)
        assert (call.completion, call.delivered) == (Completion.COMPLETE, Delivered(state="full"))
        assert len(world.engine.requests) == 1


async def test_a_retry_does_not_join_a_call_that_is_being_given_up(tmp_path: Path) -> None:
    gate, left = Gate(), asyncio.Event()

    async def dragging(request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        try:
            async for chunk in generate(request):
                yield chunk
        finally:
            left.set()
            await asyncio.shield(asyncio.sleep(0.3))

    async with proxy(tmp_path, in_turn(ScriptedAnswer(ids=odd("x").ids, gates={0: gate}), odd("anew"))) as world:
        generate, world.engine.generate = world.engine.generate, dragging  # type: ignore[method-assign]
        access = await world.open()
        first = asyncio.create_task(_post(world, access))
        await gate.stood_before()
        first.cancel()
        await asyncio.wait_for(left.wait(), 10)
        async with world.post(access, BODY, x_stainless_retry_count="1") as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "anew"


async def _post(world: World, access: SessionAccess) -> None:
    async with world.post(access, BODY) as response:
        await response.read()


async def test_a_lost_answer_belongs_to_the_first_that_asks_again_until_they_leave(tmp_path: Path) -> None:
    request = ModelRequest(messages=(Message(role=Role.USER, text="hi"),))
    async with proxy(tmp_path, in_turn(odd("one"), odd("two"))) as world:
        access = await world.open()
        live = world.gateway.authorize(access.session_id, access.key)
        lost = world.gateway.answer(live, "chat", request, {})
        await world.recorded(access.session_id, 1)
        lost.leave()
        again = world.gateway.answer(live, "chat", request, {})
        another = world.gateway.answer(live, "chat", request, {})
        await world.recorded(access.session_id, 2)
        again.leave()
        last = world.gateway.answer(live, "chat", request, {})
        assert live.counters["retries_answered_again"] == 2
        assert live.counters["calls"] == 2
        for feed in (another, last):
            feed.leave()
