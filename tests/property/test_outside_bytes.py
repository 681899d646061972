"""Whatever bytes arrive, a running proxy answers with a status below 500, or closes, and goes on answering others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from every_dialect import WIRES, Wire
from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.proxy.access import SessionAccess
from proxy_world import ADMIN, World, call_text, proxy
from raw_http import statuses

WITHIN_S = 20


class Running:
    """One proxy for all examples of a test."""

    def __init__(self, runner: asyncio.Runner, world: World, access: SessionAccess) -> None:
        self.runner, self.world, self.access = runner, world, access

    def run(self, act: Callable[[World, SessionAccess], Awaitable[Any]]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(WITHIN_S):
                return await act(self.world, self.access)

        return self.runner.run(bounded())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    answer = ScriptedAnswer(text="fine " + call_text())
    context = proxy(tmp_path, lambda request: answer, context_length=100_000, max_concurrent_calls=1000)
    with asyncio.Runner() as runner:
        world = runner.run(context.__aenter__())
        yield Running(runner, world, runner.run(world.open()))
        counters = runner.run(_counters(world))
        runner.run(context.__aexit__(None, None, None))
        assert counters.get("internal_errors") is None
        assert counters["complete"] == counters["calls"] - counters.get("context_full", 0)


async def _counters(world: World) -> dict[str, int]:
    """Once nobody is being answered any more, and after one more call that is answered as ever."""
    access = await world.open()
    async with world.post(access, {"messages": [{"role": "user", "content": "hi"}]}) as response:
        assert response.status == 200
    async with asyncio.timeout(WITHIN_S):
        while world.gateway.calls_in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return dict(world.gateway.totals)


SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = (
    "role", "content", "type", "text", "user", "assistant", "system", "tool", "developer", "tool_calls", "id", "name",
    "function", "arguments", "tool_call_id", "{}", '{"a": 1.0}', "input_text", "output_text", "message", "call_id",
    "function_call", "function_call_output", "output", "parts", "functionCall", "functionResponse", "response", "args",
    "tool_use", "tool_result", "tool_use_id", "input", "image_url", "data:image/png;base64,iVBORw0KGgo=", "thinking",
    "model", "reasoning", "summary", "signature", "is_error", "\ud83d", "\x00", "<|im_end|>", "é", "",
)  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS), st.text(max_size=3)
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
    max_leaves=10,
)  # fmt: skip
ROLES = st.sampled_from(("user", "assistant", "system", "tool", "developer", "model"))
PARTS = st.one_of(
    st.text(max_size=4),
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(("text", "input_text", "output_text", "tool_use", "tool_result", "thinking"))},
            optional={
                "text": st.text(max_size=3), "id": LEAVES, "name": LEAVES, "input": VALUES, "tool_use_id": LEAVES,
                "content": VALUES, "thinking": LEAVES, "signature": LEAVES,
            },
        ),
        max_size=3,
    ),
)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES},
        optional={"content": PARTS, "parts": VALUES, "tool_calls": VALUES, "tool_call_id": LEAVES, "name": LEAVES},
    ),
    max_size=4,
)  # fmt: skip
EXTRA = st.dictionaries(
    st.sampled_from((
        "tools", "tool_choice", "max_tokens", "stop", "temperature", "system", "instructions", "response_format",
        "reasoning", "generationConfig", "toolConfig", "thinking", "stream", "text", "include", "n", "seed",
    )),
    VALUES, max_size=2,
)  # fmt: skip


def bodies(wire: Wire) -> st.SearchStrategy[Any]:
    """A good call with something wrong, or odd, in it; seldom what is no call at all."""
    place = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}[wire.name]
    good = wire.asked("hi")
    odd = st.builds(lambda extra, history: {**good, **extra, place: [*history, *_list(good[place])]}, EXTRA, MESSAGES)
    return st.one_of(odd, odd, VALUES)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [{"role": "user", "content": value}]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_any_body_gets_an_answer_or_a_refusal(running: Running, wire: Wire) -> None:
    @SETTINGS
    @given(body=bodies(wire), stream=st.booleans())
    def hold(body: Any, stream: bool) -> None:
        async def ask(world: World, access: SessionAccess) -> tuple[int, bytes]:
            url = wire.url(world.server.url, access, stream=stream)
            sent = json.dumps(body).encode()
            async with world.http.post(url, data=sent, headers=wire.headers(access)) as response:
                return response.status, await response.read()

        status, said = running.run(ask)
        assert status < 500, said

    hold()


@pytest.mark.parametrize("path", ["/sessions", "/sessions/S/close", "/sessions/S/grade", "/weights"])
def test_any_control_body_gets_an_answer_or_a_refusal(running: Running, path: str) -> None:
    names = (
        "task_id", "group_id", "rollout_id", "attempt", "harness", "sampling", "labels", "strip_system_lines",
        "ended_by", "reason", "reward", "ungraded", "grader_error", "folder", "policy_version", "temperature", "top_k",
    )  # fmt: skip
    values = st.recursive(
        st.one_of(LEAVES, st.sampled_from(("finished", "infra", "r1", ".", "/nowhere\x00"))),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(names), inner, max_size=3)
        ),
        max_leaves=5,
    )

    @SETTINGS
    @given(
        body=st.one_of(
            st.dictionaries(st.sampled_from(names), values, max_size=3).map(json.dumps).map(str.encode),
            values.map(json.dumps).map(str.encode),
            st.binary(max_size=20),
        )
    )
    def hold(body: bytes) -> None:
        async def ask(world: World, access: SessionAccess) -> tuple[int, Any]:
            session = await world.open()
            headers = {"Authorization": f"Bearer {ADMIN}"}
            url = world.server.url + path.replace("S", session.session_id)
            async with world.http.post(url, data=body, headers=headers) as response:
                return response.status, await response.json()

        status, said = running.run(ask)
        assert status < 500, said
        assert status < 400 or set(said["error"]) == {"message", "code"}

    hold()


PIECES = (
    b"GET ", b"POST ", b"HEAD ", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n", b"\r", b"\r\n\r\n", b":", b" ", b"\x00",
    b"Host: x", b"Content-Length: 5", b"Content-Length: 18446744073709551616", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, gzip", b"Connection: close", b"Connection: upgrade", b"Upgrade: h2c", b"5\r\nhello",
    b"0\r\n\r\n", b"ffffffff\r\n", b"Expect: 100-continue", b"Content-Encoding: gzip", b"{}", b"[" * 50, b"/healthz",
    b"/sessions", b"/s/SESSION/v1/chat/completions", b"/s/SESSION/v1/models?key=%ff", b"Authorization: Bearer KEY",
    b"Authorization: Bearer admin-secret", b"x" * 9000, b"\xff\xfe", b"%00", b"http://[::1", b"*",
)  # fmt: skip
REQUESTS = st.one_of(
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=5)), max_size=14),
    st.lists(st.sampled_from(PIECES[12:]), max_size=5).map(
        lambda some: [b"POST ", b"/s/SESSION/v1/chat/completions", b" HTTP/1.1\r\n", b"Host: x\r\n",
                      *(part for piece in some for part in (piece, b"\r\n")), b"\r\n", b"{}"]
    ),
)  # fmt: skip


def test_any_bytes_on_a_connection_end_in_an_answer_or_its_close(running: Running) -> None:
    @settings(SETTINGS, max_examples=150)
    @given(pieces=REQUESTS, together=st.booleans())
    def hold(pieces: list[bytes], together: bool) -> None:
        async def send(world: World, access: SessionAccess) -> bytes:
            told = [
                piece.replace(b"SESSION", access.session_id.encode()).replace(b"KEY", access.key.encode())
                for piece in pieces
            ]
            reader, writer = await asyncio.open_connection(*world.server.address)
            try:
                for piece in [b"".join(told)] if together else told:
                    writer.write(piece)
                    await writer.drain()
                writer.write_eof()
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

        assert all(status < 500 for status in statuses(running.run(send)))

    hold()
