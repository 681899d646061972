"""The life of sessions and keys: what closing does to calls in flight, and that nothing of it stays in memory."""

from __future__ import annotations

import asyncio
import gc
import itertools
from pathlib import Path
from typing import Any

import pytest

from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.errors import AccessError, ConfigError, StoreError
from openforgerl.proxy.access import SessionAccess
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.feed import Batch
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from openforgerl.proxy.session import LiveSession
from openforgerl.records import (
    Completion,
    Delivered,
    EndedBy,
    Ending,
    Grade,
    MaskReason,
    Message,
    ModelRequest,
    RecordedCall,
    Role,
    Session,
)
from openforgerl.store.sqlite import Store
from proxy_world import ADMIN, FINISHED, Gate, World, in_turn, lawful, odd_ids, proxy

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def stuck(gate: Gate) -> ScriptedAnswer:
    return ScriptedAnswer(ids=odd_ids("hello there"), gates={5: gate})


async def status_of(world: World, access: Any, body: dict[str, Any]) -> tuple[int, str]:
    async with world.post(access, body) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_closing_cancels_calls_in_flight_and_records_them_as_late(tmp_path: Path, stream: bool) -> None:
    async with proxy(tmp_path, in_turn(stuck(gate := Gate()))) as world:
        access = await world.open()
        asked = asyncio.create_task(status_of(world, access, {**BODY, "stream": stream}))
        await gate.stood_before()
        await world.gateway.close_session(access.session_id, FINISHED)
        status, text = await asked
        assert "session_closed" in text
        assert "[DONE]" not in text
        assert status == (200 if stream else 410)
        (call,) = world.store.calls(access.session_id)
        assert (call.completion, len(call.sampled_ids)) == (Completion.LATE, 5)
        assert world.engine.cancelled == [call.call_id]
        (row,) = lawful((call,))
        assert row.mask_reasons.count(MaskReason.LATE) == 5
        assert (await status_of(world, access, BODY))[0] == 410


async def test_a_call_that_outlives_the_close_is_late(tmp_path: Path) -> None:
    """The engine does not let go in time."""

    async def drag(request: Any) -> Any:
        try:
            async for chunk in generate(request):
                yield chunk
        finally:
            await asyncio.shield(asyncio.sleep(0.4))

    async with proxy(tmp_path, in_turn(stuck(gate := Gate())), close_timeout_s=0.1) as world:
        generate, world.engine.generate = world.engine.generate, drag  # type: ignore[method-assign]
        access = await world.open()
        asked = asyncio.create_task(status_of(world, access, BODY))
        await gate.stood_before()
        await world.gateway.close_session(access.session_id, FINISHED)
        assert world.store.calls(access.session_id) == ()
        assert (await asked)[0] == 410
        (call,) = world.store.calls(access.session_id)
        assert call.completion is Completion.LATE


async def test_what_a_client_takes_after_the_close_changes_nothing(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("whole")) as world:
        sealed = await read_after_the_close(world, await world.open())
        assert world.gateway.totals["deliveries_after_the_close"] == 1
        assert world.store.calls(sealed.session_id) == (sealed,)
        with pytest.raises(StoreError, match="is sealed"):
            await world.store.deliver(sealed.session_id, sealed.call_id, Delivered(state="full"))
        assert world.store.calls(sealed.session_id) == (sealed,)


async def read_after_the_close(world: World, access: SessionAccess) -> RecordedCall:
    request = ModelRequest(messages=(Message(role=Role.USER, text="hi"),))
    feed = world.gateway.answer(world.gateway.authorize(access.session_id, access.key), "chat", request, {})
    await world.recorded(access.session_id, 1)
    (sealed,) = await world.settled(access)
    async for batch in feed.batches():
        assert batch is not None
        feed.wrote(batch)
    feed.leave()
    return sealed


async def test_shutting_down_records_what_is_in_flight_and_leaves_sessions_open(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(stuck(gate := Gate()))) as world:
        access = await world.open()
        asked = asyncio.create_task(status_of(world, access, BODY))
        await gate.stood_before()
        await world.gateway.give_up()
        assert (await asked)[0] == 503
        (call,) = world.store.calls(access.session_id)
        assert (call.completion, call.delivered) == (Completion.ENGINE_ABORTED, Delivered(state="prefix", count=0))
        assert world.store.session(access.session_id).ending is None
        assert (await status_of(world, access, BODY))[0] == 503


async def test_an_error_in_the_body_of_serve_is_not_wrapped(tmp_path: Path) -> None:
    async def fail_inside() -> None:
        async with proxy(tmp_path, in_turn("x")):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_inside()


async def test_keys_open_their_own_session_only_and_die_with_it(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        one, two = await world.open(), await world.open()
        gateway = world.gateway
        assert gateway.authorize("s1", one.key).session.session_id == "s1"
        for session_id, key in (("s1", two.key), ("s1", ""), ("s1", ADMIN), ("nowhere", one.key), ("s2", one.key)):
            with pytest.raises(AccessError) as caught:
                gateway.authorize(session_id, key)
            assert caught.value.http_status == 401
        await gateway.close_session("s1", FINISHED)
        with pytest.raises(AccessError) as gone:
            gateway.authorize("s1", one.key)
        assert gone.value.http_status == 410
        assert gateway.authorize("s2", two.key).session.session_id == "s2"


def holding(folder: Path, secret: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


async def test_keys_are_long_and_kept_as_hashes_only(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        assert access.key.startswith("sk-")
        assert len(access.key) == 46
        live = world.gateway.authorize(access.session_id, access.key)
        assert access.key not in repr(live)
        await world.settled(access)
        assert not holding(tmp_path, access.key)


async def test_a_session_that_nobody_closes_expires_as_infrastructure(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), session_max_age_s=0.05) as world:
        access = await world.open()
        await asyncio.sleep(0.06)
        assert (await status_of(world, access, BODY))[0] == 410
        await world.open()
        ending = world.store.session(access.session_id).ending
        assert ending is not None
        assert (ending.ended_by, ending.reason) == (EndedBy.INFRA, "nobody closed the session before it expired")


async def test_closing_twice_keeps_the_first_ending(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        endings = [FINISHED, Ending(ended_by=EndedBy.CANCELLED)]
        await asyncio.gather(*(world.gateway.close_session(access.session_id, ending) for ending in endings))
        await world.gateway.close_session(access.session_id, endings[1])
        assert world.store.session(access.session_id).ending == FINISHED


async def test_an_open_session_takes_no_grade(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        with pytest.raises(StoreError, match="close it before it is graded"):
            await world.gateway.grade(access.session_id, Grade(kind="reward", reward=1.0))
        await world.gateway.close_session(access.session_id, FINISHED)
        await world.gateway.grade(access.session_id, Grade(kind="reward", reward=1.0))
        grade = world.gateway.status(access.session_id).session.grade
        assert grade == Grade(kind="reward", reward=1.0)


async def test_a_session_without_calls_has_no_rows(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        assert lawful(await world.settled(access)) == ()


async def test_hundreds_of_sessions_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:

        async def live_and_die(number: int) -> None:
            session_id = f"m{number}"
            access = await world.gateway.open_session(Session(session_id=session_id))
            live = world.gateway.authorize(session_id, access.key)
            live.count("calls")
            await world.gateway.close_session(session_id, FINISHED)

        async def many(start: int, count: int) -> int:
            for first in range(start, start + count, 50):
                await asyncio.gather(*(live_and_die(number) for number in range(first, first + 50)))
            gc.collect()
            return len(gc.get_objects())

        counts = [await many(start, count) for start, count in ((0, 100), (100, 100), (200, 100), (300, 100))]
        growth = min(after - before for before, after in itertools.pairwise(counts))
        assert growth < 100, "a closed session is in the store, and nowhere else"
        assert not [each for each in gc.get_objects() if isinstance(each, LiveSession)]
        assert world.gateway.status("m399").counters == {"calls": 1}
        assert world.gateway.status("m0").counters == {"calls": 1}


async def test_an_answered_call_keeps_no_copy_of_its_conversation(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("hello there, a few words")) as world:
        access = await world.open()
        for number in range(5):
            assert (await status_of(world, access, {**BODY, "user": str(number), "stream": True}))[0] == 200
        await world.recorded(access.session_id, 5)
        await world.connected(access, 0)
        gc.collect()
        kept = gc.get_objects()
        assert [each for each in kept if isinstance(each, ModelRequest) and each.messages] == []
        assert len([each for each in kept if isinstance(each, Batch)]) == 5, (
            "a stream is kept as one batch, for a retry"
        )


async def test_a_taken_port_and_an_empty_token_are_named(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        host, port = world.server.address
        config = ProxyConfig(host=host, port=port)
        second = Gateway(engine=world.engine, store=world.store, template=world.gateway.template, config=config)
        with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}"):
            await serve(second, admin_token=ADMIN).__aenter__()
        with pytest.raises(ConfigError, match="admin token is empty"):
            await serve(second, admin_token="").__aenter__()


async def test_what_was_counted_of_a_session_outlives_the_proxy(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("hello"), max_calls_per_session=1) as world:
        access = await world.open()
        assert (await status_of(world, access, BODY))[0] == 200
        assert (await status_of(world, access, BODY))[0] == 403
        assert (await status_of(world, access, {"messages": "wrong"}))[0] == 400
        world.gateway.count(access.session_id, "output_bytes_dropped", 7)
        await world.gateway.close_session(access.session_id, FINISHED)
        counted = dict(world.gateway.status(access.session_id).counters)
        assert counted["calls_exhausted"] == counted["requests_refused"] == counted["complete"] == 1
        assert counted["output_bytes_dropped"] == 7
    store = Store.open(world.store.folder, read_only=True)
    ending = store.session(access.session_id).ending
    store.close()
    assert ending is not None
    assert ending.counters == counted
