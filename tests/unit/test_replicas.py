"""Several servers behind one engine: sessions stay, sessions of a dead one move, and who comes back is brought up."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from test_vllm_engine import ask, taken

from engine_servers import EngineServer, serving
from openforgerl.engines import replicas
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.vllm import VllmEngine
from openforgerl.records import GenerateRequest


def of(session: int) -> GenerateRequest:
    return replace(ask(), session_id=f"s{session}", request_id=f"r{session}")


@asynccontextmanager
async def world(count: int) -> AsyncIterator[tuple[Sequence[EngineServer], VllmEngine]]:
    servers = [EngineServer() for _ in range(count)]
    async with serving(*servers):
        config = RemoteEngineConfig(base_urls=tuple(server.url for server in servers), connect_timeout_s=2)
        engine = await VllmEngine.open(Path("none"), config)
        try:
            yield servers, engine
        finally:
            await engine.aclose()


async def call(engine: VllmEngine, sessions: Sequence[int]) -> list[object]:
    """The fault of each, None where there is none."""
    return [error for _, error in await asyncio.gather(*(taken(engine.generate(of(each))) for each in sessions))]


def served(servers: Sequence[EngineServer]) -> list[Counter[str]]:
    return [Counter(body["request_id"].split("-")[0] for body in server.calls) for server in servers]


async def test_a_session_stays_with_its_replica_and_sessions_are_spread() -> None:
    async with world(3) as (servers, engine):
        for _ in range(4):
            assert await call(engine, range(9)) == [None] * 9
    assert [sorted(each.values()) for each in served(servers)] == [[4, 4, 4]] * 3
    assert engine.counters.get("sessions_moved", 0) == 0


async def test_the_sessions_of_a_dead_replica_move_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "HEALTH_S", 3600.0)
    async with world(2) as (servers, engine):
        await call(engine, range(4))
        dead = served(servers)[0]
        await servers[0].stop()
        for _ in range(2):
            assert await call(engine, range(4)) == [None] * 4
        assert engine.counters["sessions_moved"] == len(dead) == 2
        assert engine.counters["replicas_lost"] == 1
        await servers[0].start()


async def eventually(engine: VllmEngine, counter: str) -> None:
    async with asyncio.timeout(20):
        while not engine.counters.get(counter):  # noqa: ASYNC110 (the engine has no event)
            await asyncio.sleep(0.01)


async def test_who_was_started_again_gets_the_newest_weights_before_any_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replicas, "HEALTH_S", 0.02)
    async with world(1) as ((server,), engine):
        await engine.load_weights(tmp_path, 3)
        await server.stop()
        await eventually(engine, "replicas_lost")
        server.questions.clear()
        await server.start()
        await eventually(engine, "replicas_restored")
        assert [path for path, _ in server.questions] == ["/collective_rpc", "/reset_prefix_cache"]
        assert await call(engine, [1]) == [None]


async def test_a_replica_that_cannot_load_the_weights_gets_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "HEALTH_S", 3600.0)
    async with world(2) as (servers, engine):
        servers[0].updates_fail = True
        await engine.load_weights(tmp_path, 3)
        assert await call(engine, range(6)) == [None] * 6
    assert [len(server.calls) for server in servers] == [0, 6]
    assert engine.counters["updates_failed"] == 1


async def test_a_server_that_is_slow_keeps_its_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replicas, "HEALTH_S", 0.02)
    monkeypatch.setattr(replicas, "_PATIENCE", 0.05)
    async with world(1) as ((server,), engine):
        await engine.load_weights(tmp_path, 3)
        server.questions.clear()
        server.slow = asyncio.Event()
        before = server.looks
        async with asyncio.timeout(20):
            while server.looks < before + 3:  # noqa: ASYNC110 (the server has no event)
                await asyncio.sleep(0.01)
        assert await call(engine, [1]) == [None]
        server.slow.set()
    assert (server.questions, engine.counters.get("replicas_lost", 0)) == ([], 0)
