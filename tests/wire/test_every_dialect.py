"""What holds in every wire format alike."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from every_dialect import WIRES, Wire, comments_of, events_of
from openforgerl.engines.scripted import ScriptedAnswer
from proxy_world import Gate, in_turn, lawful, odd, odd_ids, proxy

EVERY = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


@EVERY
@pytest.mark.parametrize("model", ["claude-3-5-haiku-latest", "gpt-5-2025-08-07", "a model/that:nobody@knows", ""])
async def test_any_model_name_is_answered_by_the_policy_and_kept(tmp_path: Path, wire: Wire, model: str) -> None:
    if wire.name == "gemini":
        model = model.replace(":", "").replace("/", "") or "x"
    async with proxy(tmp_path, in_turn(odd("fine"))) as world:
        access = await world.open()
        url = wire.url(world.server.url, access, model=model)
        async with world.http.post(url, json=wire.asked("hi", model=model), headers=wire.headers(access)) as response:
            assert wire.text(await response.json()) == "fine"
        (call,) = await world.settled(access)
        assert call.model_asked == model


@EVERY
async def test_usage_is_whole_in_both_forms(tmp_path: Path, wire: Wire) -> None:
    async with proxy(tmp_path, in_turn(odd("fine"))) as world:
        access = await world.open()
        found = []
        for stream in (False, True):
            url = wire.url(world.server.url, access, stream=stream)
            async with world.http.post(
                url, json=wire.asked("hi", stream=stream), headers=wire.headers(access)
            ) as response:
                found.append(await response.read())
        plain, streamed = found
        calls = await world.settled(access)
        expected = (len(calls[0].prompt.new_ids), len(calls[0].sampled_ids))
        assert wire.usage(events_of(b"data: " + plain + b"\n")[0]) == expected
        counts = {str(number) for number in expected}
        assert counts <= set(streamed.decode().replace("}", ",").replace(":", ",").split(",")), "said in the stream too"
        lawful(calls)


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.name != "gemini"], ids=lambda wire: wire.name)
async def test_a_silent_stream_is_kept_alive_by_what_is_no_content(tmp_path: Path, wire: Wire) -> None:
    """Before the first text, and within it; readers of Gemini's format know nothing that says nothing."""
    gates = {0: Gate(), 2: Gate()}
    answer = ScriptedAnswer(ids=odd_ids("fine"), gates=dict(gates))
    async with proxy(tmp_path, in_turn(answer), keep_alive_s=0.02, headers_after_s=0) as world:
        access = await world.open()
        url = wire.url(world.server.url, access, stream=True)
        async with world.http.post(url, json=wire.asked("hi", stream=True), headers=wire.headers(access)) as response:
            raw = b""
            for gate in gates.values():
                await gate.stood_before()
                seen = len(raw)
                async with asyncio.timeout(10):
                    while alive(raw[seen:]) < 2:
                        raw += await response.content.readany()
                gate.set()
            raw += await response.read()
        events = events_of(raw)
        assert "".join(wire.delta(event) for event in events if event != "[DONE]") == "fine"
        assert [wire.final(event) for event in events].count(True) == 1
        assert wire.final(events[-1])
        (call,) = await world.settled(access)
        assert call.delivered.state == "full"


def alive(raw: bytes) -> int:
    kinds = [event.get("type") for event in events_of(raw) if event != "[DONE]"]
    return len(comments_of(raw)) + kinds.count("ping") + kinds.count("response.in_progress")
