"""Many sessions at once, of every dialect, while clients leave, engines fail or stall, disks fill and clocks jump."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import aiohttp
import pytest

from every_dialect import BY_NAME, WIRES, Wire, events_of
from openforgerl.engines.scripted import ScriptedAnswer, ScriptedEngine
from openforgerl.proxy.access import SessionAccess
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from openforgerl.records import Completion, EndedBy, Ending, GenerateRequest, Session
from openforgerl.store.sqlite import Store
from proxy_world import ADMIN, FINISHED, Gate, World, codec, lawful, odd_ids, proxy, template

TEXT = "an answer that is long enough to be cut at any byte of it"


async def streamed(world: World, access: SessionAccess, wire: Wire, said: str, most: int | None = None) -> bytes:
    """The stream, or its first `most` bytes, head included; then the client is gone without a word."""
    url = wire.url(world.server.url, access, stream=True)
    path = url.removeprefix(world.server.url)
    body = json.dumps(wire.asked(said, stream=True)).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in wire.headers(access).items()]
    reader, writer = await asyncio.open_connection(*world.server.address)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        got = b""
        while most is None or len(got) < most:
            part = await reader.read(1000 if most is None else most - len(got))
            if not part:
                break
            got += part
        return got
    finally:
        writer.transport.abort()


def whole(wire: Wire, raw: bytes) -> bool:
    return any(wire.final(event) for event in events_of(unchunked(raw)))


def unchunked(raw: bytes) -> bytes:
    """The body of a chunked answer, as far as it came."""
    body, rest = b"", raw.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


def at_random(chance: Random) -> ScriptedAnswer:
    return ScriptedAnswer(ids=odd_ids(TEXT), chunk_sizes=(chance.randrange(1, 6),))


async def closed_and_lawful(world: World, accesses: list[SessionAccess], asked: Counter[str]) -> Counter[Completion]:
    """Every call that came in is recorded, once; nothing of it goes on."""
    found: Counter[Completion] = Counter()
    for access in accesses:
        await world.connected(access, 0)
        calls = await world.settled(access)
        lawful(calls)
        assert world.store.intents(access.session_id) == ()
        replayed = world.gateway.status(access.session_id).counters.get("retries_answered_again", 0)
        assert len(calls) == asked[access.session_id] - replayed
        assert all(call.delivered.count <= len(call.sampled_ids) for call in calls)
        found.update(call.completion for call in calls)
    assert world.engine.running == set()
    return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_clients_that_leave_at_any_byte_lose_nothing_and_disturb_nobody(tmp_path: Path, seed: int) -> None:
    await leaving_at_any_byte(tmp_path, seed, sessions=12, within_s=60)


@pytest.mark.real
async def test_hundreds_of_clients_that_leave_at_any_byte_lose_nothing(tmp_path: Path) -> None:
    await leaving_at_any_byte(tmp_path, 3, sessions=400, within_s=280)


async def leaving_at_any_byte(tmp_path: Path, seed: int, *, sessions: int, within_s: float) -> None:
    chance = Random(seed)
    async with proxy(tmp_path, lambda request: at_random(chance)) as world:
        accesses = [await world.open() for _ in range(sessions)]
        asked: Counter[str] = Counter()

        async def live(number: int, access: SessionAccess) -> None:
            own, wire = Random(seed * 100 + number), WIRES[number % len(WIRES)]
            length = len(await streamed(world, access, wire, "the first one"))
            for turn in range(5):
                most = own.randrange(1, length) if number % 3 else None
                got = await streamed(world, access, wire, f"turn {turn}", most)
                assert most is not None or whole(wire, got), got
                asked[access.session_id] += 1
            asked[access.session_id] += 1

        await asyncio.wait_for(asyncio.gather(*(live(*each) for each in enumerate(accesses))), within_s)
        found = await closed_and_lawful(world, accesses, asked)
        assert set(found) <= {Completion.COMPLETE, Completion.CLIENT_ABORTED}
        assert found.total() == sessions * 6


async def test_an_engine_that_breaks_under_load_fails_its_calls_only(tmp_path: Path) -> None:
    chance = Random(3)
    broken: set[str] = set()

    def script(request: GenerateRequest) -> ScriptedAnswer:
        if chance.random() < 0.5:
            return at_random(chance)
        broken.add(request.request_id)
        at = chance.randrange(len(TEXT))
        return ScriptedAnswer(ids=odd_ids(TEXT), **{chance.choice(("fail_after", "abort_after")): at})

    async with proxy(tmp_path, script) as world:
        accesses = [await world.open() for _ in range(8)]
        ends: Counter[bool] = Counter()
        asked: Counter[str] = Counter()

        async def live(number: int, access: SessionAccess) -> None:
            wire = WIRES[number % len(WIRES)]
            for turn in range(5):
                ends[whole(wire, await streamed(world, access, wire, f"turn {turn}"))] += 1
                asked[access.session_id] += 1

        await asyncio.wait_for(asyncio.gather(*(live(*each) for each in enumerate(accesses))), 60)
        found = await closed_and_lawful(world, accesses, asked)
        assert found[Completion.COMPLETE] == ends[True] == 40 - len(broken)
        assert found[Completion.ERROR] + found[Completion.ENGINE_ABORTED] == ends[False] == len(broken) > 0


async def test_an_engine_that_stalls_is_left_at_the_deadline_and_others_go_on(tmp_path: Path) -> None:
    stalled: list[Gate] = []

    def script(request: GenerateRequest) -> ScriptedAnswer:
        gates = {}
        if "stall" in codec().decode(request.prompt_ids):
            stalled.append(Gate())
            gates = {7: stalled[-1]}
        return ScriptedAnswer(ids=odd_ids(TEXT), gates=gates)

    async with proxy(tmp_path, script, call_timeout_s=1.0) as world:
        stuck, free = [await world.open() for _ in range(8)], [await world.open() for _ in range(4)]
        waiting = [asyncio.create_task(streamed(world, a, WIRES[n % 4], "stall")) for n, a in enumerate(stuck)]
        async with asyncio.timeout(20):
            while len(stalled) < len(stuck):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        answered = [await streamed(world, a, WIRES[n % 4], "go") for n, a in enumerate(free)]
        assert all(whole(WIRES[n % 4], got) for n, got in enumerate(answered))
        left = await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert not any(whole(WIRES[n % 4], got) for n, got in enumerate(left))
        assert len(world.engine.cancelled) == len(stuck)
        once = Counter(access.session_id for access in [*stuck, *free])
        found = await closed_and_lawful(world, [*stuck, *free], once)
        assert found == {Completion.ERROR: len(stuck), Completion.COMPLETE: len(free)}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", place], check=True)


async def test_on_a_full_disk_calls_fail_and_no_answer_is_given_that_is_not_recorded(small_disk: Path) -> None:
    def script(request: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=odd_ids(TEXT))

    async with proxy(small_disk, script, context_length=200_000) as world:
        access = await world.open()
        wire = BY_NAME["chat"]
        filler = small_disk / "filler"
        filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 300_000))

        async def ask(number: int) -> int:
            body = wire.asked(f"{number} " + "word " * 8000)
            async with world.http.post(
                wire.url(world.server.url, access), json=body, headers=wire.headers(access)
            ) as answer:
                if answer.status != 200:
                    assert (await answer.json())["error"]["code"] == "not_recorded"
                return answer.status

        statuses = [await ask(number) for number in range(12)]
        assert set(statuses) == {200, 503}
        assert len(world.store.calls(access.session_id)) == statuses.count(200)
        filler.unlink()
        assert await ask(99) == 200
        calls = await world.settled(access)
        assert [call.completion for call in calls] == [Completion.COMPLETE] * (statuses.count(200) + 1)
        lawful(calls)


async def test_a_clock_that_jumps_ends_nothing_and_changes_no_order(tmp_path: Path) -> None:
    """Wall-clock time is for display: every deadline is of the monotonic clock."""
    now, day = [1_000_000_000.0], 86_400.0
    gates = [Gate(), Gate()]
    left = list(gates)
    store = Store.open(tmp_path)
    engine = ScriptedEngine(lambda request: ScriptedAnswer(ids=odd_ids(TEXT), gates={5: left.pop(0)}), codec())
    config = ProxyConfig(session_max_age_s=600, call_timeout_s=60)
    gateway = Gateway(engine=engine, store=store, template=template(), config=config, clock=lambda: now[0])
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.aclose)
        server = await stack.enter_async_context(serve(gateway, admin_token=ADMIN))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        access = await gateway.open_session(Session(session_id="s1"))
        wire = BY_NAME["messages"]
        for gate, jump in zip(gates, (400 * day, -800 * day), strict=True):
            asked = asyncio.create_task(_text(http, wire, server.url, access))
            await gate.stood_before()
            now[0] += jump
            await gateway.open_session(Session(session_id=f"other{int(jump > 0)}"))
            gate.set()
            assert await asked == TEXT
        assert gateway.sessions_open == 3, "nothing has expired"
        await gateway.close_session("s1", FINISHED)
        assert store.session("s1").ending == Ending(ended_by=EndedBy.FINISHED, counters=gateway.status("s1").counters)
        calls = store.calls("s1")
        assert [call.index for call in calls] == [0, 1]
        assert [call.completion for call in calls] == [Completion.COMPLETE] * 2
        assert calls[0].ended_at > calls[1].ended_at
        lawful(calls)


async def _text(http: aiohttp.ClientSession, wire: Wire, base: str, access: SessionAccess) -> str:
    async with http.post(wire.url(base, access), json=wire.asked("hi"), headers=wire.headers(access)) as response:
        return wire.text(await response.json())
