"""Large requests: whole bodies whatever their segments, and nobody else waits while one is turned into ids."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from openforgerl.records import ModelRequest
from openforgerl.tokens.assembly import Assembler, Prompt
from proxy_world import ADMIN, World, in_turn, odd, proxy

LARGE: Any = {"model": "m", "messages": [{"role": "user", "content": "word " * 20_000}]}
SMALL: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class HeldAssembler(Assembler):
    """The assembler of the proxy; a large request waits in it, wherever it runs, until it is let go."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.entered, self.go = threading.Event(), threading.Event()
        self.users: list[str] = []

    def assemble(self, request: ModelRequest) -> Prompt:
        self.users.append("assemble")
        if len(request.messages[0].text) > 1000:
            self.entered.set()
            assert self.go.wait(20), "nobody let it go: the event loop is held up"
        prompt = super().assemble(request)
        self.users.append("assembled")
        return prompt

    def remember(self, call: Any) -> None:
        self.users.append("remember")
        super().remember(call)


async def held(world: World) -> tuple[Any, HeldAssembler]:
    access = await world.open()
    live = world.gateway.authorize(access.session_id, access.key)
    live.assembler = HeldAssembler(world.gateway.template)
    return access, live.assembler


async def answered(world: World, access: Any, body: Any) -> int:
    async with world.post(access, body) as response:
        await response.read()
        return int(response.status)


async def raw(world: World, head: str, *segments: bytes) -> tuple[int, Any]:
    """One control request whose body comes in these TCP segments."""
    host, port = world.server.address
    reader, writer = await asyncio.open_connection(host, port)
    length = sum(map(len, segments))
    headers = f"Host: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    writer.write(f"{head} HTTP/1.1\r\n{headers}".encode())
    for segment in segments:
        writer.write(segment)
        await writer.drain()
        await asyncio.sleep(0.05)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    top, _, body = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(body)


async def test_a_control_body_in_two_segments_is_read_whole(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        status, made = await raw(world, "POST /sessions", b'{"rollout_id": "r', b'1", "labels": {"a": "b"}}')
        assert (status, made["session_id"]) == (201, "r1-a0")
        assert world.store.session("r1-a0").labels == {"a": "b"}


async def test_a_control_body_over_the_cap_is_a_413(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        body = {"labels": {"a": "x" * (1 << 20)}}
        async with world.control("POST", "/sessions", body) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, "request_too_large")


async def test_a_control_body_that_never_ends_is_a_408(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), body_timeout_s=0.2) as world:
        host, port = world.server.address
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST /sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 9\r\n\r\n{{"
        writer.write(head.encode())
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()


async def test_others_are_answered_while_a_large_request_is_assembled(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("fine")), context_length=200_000) as world:
        access, assembler = await held(world)
        other = await world.open()
        large = asyncio.create_task(answered(world, access, LARGE))
        await asyncio.to_thread(assembler.entered.wait, 10)
        async with world.http.get(f"{world.server.url}/healthz") as response:
            assert response.status == 200
        assert await answered(world, other, SMALL) == 200
        assert not large.done()
        assembler.go.set()
        assert await large == 200


async def test_a_session_is_assembled_in_the_order_of_its_requests_and_by_one_thread(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("fine")), context_length=200_000) as world:
        access, assembler = await held(world)
        large = asyncio.create_task(answered(world, access, LARGE))
        await asyncio.to_thread(assembler.entered.wait, 10)
        small = asyncio.create_task(answered(world, access, SMALL))
        await world.connected(access, 2)
        assert assembler.users == ["assemble"]
        assembler.go.set()
        assert (await large, await small) == (200, 200)
        calls = sorted(await world.settled(access), key=lambda call: call.index)
        assert [len(call.messages.new[0].text) > 1000 for call in calls] == [True, False]
        assert [call.index for call in calls] == [0, 1]


async def test_what_is_learned_while_a_thread_assembles_waits_for_it(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("fine")), context_length=200_000) as world:
        access, assembler = await held(world)
        live = world.gateway.authorize(access.session_id, access.key)
        assert await answered(world, access, SMALL) == 200
        (call,) = world.store.calls(access.session_id)
        assembler.users.clear()
        large = asyncio.create_task(answered(world, access, LARGE))
        await asyncio.to_thread(assembler.entered.wait, 10)
        live.remember(call)
        assert assembler.users == ["assemble"]
        assembler.go.set()
        assert await large == 200
        assert assembler.users[:3] == ["assemble", "assembled", "remember"]


@pytest.mark.parametrize("text", ["x" * 7_000_000, "é" * 1_000_000])
async def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(tmp_path: Path, text: str) -> None:
    async with proxy(tmp_path, in_turn("x"), context_length=2000) as world:
        access, assembler = await held(world)
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        async with world.post(access, body) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 2000 tokens" in error["message"]
        assert assembler.users == []
        assert world.gateway.status(access.session_id).counters["context_full"] == 1
