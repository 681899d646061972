"""The vendors' JavaScript SDKs against a real proxy: the clients inside most harnesses."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.harnesses.installing import cache_folder, node_folder, npm_pins
from openforgerl.records import Completion, RecordedCall
from openforgerl.trajectories import prompt_ids
from proxy_world import Gate, call_text, in_turn, lawful, odd, odd_ids, proxy

SDKS = Path(__file__).parent / "javascript"
THINK = "<think>\nlet me see\n</think>\n\n"
FIRST = "Two. " + call_text('{"command": "ls",  "n": 2}') + "\n" + call_text('{"command": "pwd"}')

# Chat Completions has no reasoning of its own: the SDK's stream helper keeps the last piece of a field that it does not
# know, so a turn with `reasoning_content` comes back changed, and is encoded anew and counted.
REASONS = {"responses", "messages", "gemini"}
SEEN: dict[str, dict[str, Any]] = {
    "chat": {
        "finish": ["tool_calls", "stop"],
        "bad": ["BadRequestError", 400],
        "refused": ["AuthenticationError", 401],
    },
    "responses": {
        "finish": ["completed", "completed"],
        "bad": ["BadRequestError", 400],
        "refused": ["AuthenticationError", 401],
    },
    "messages": {
        "finish": ["tool_use", "end_turn"],
        "counted": 0,
        "bad": ["BadRequestError", 400],
        "refused": ["AuthenticationError", 401],
    },
    "gemini": {"finish": ["STOP", "STOP"], "bad": ["ApiError", 400], "refused": ["ApiError", 401]},
}


async def talk(folder: Path, vendor: str, url: str, key: str) -> Any:
    """What the SDK saw in its conversation."""
    packages = npm_pins(cache_folder(), "javascript-sdks", SDKS)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    shutil.copy(SDKS / "talk.mjs", folder / "talk.mjs")
    node = await asyncio.create_subprocess_exec(
        str(node_folder(cache_folder()) / "bin" / "node"),
        str(folder / "talk.mjs"),
        vendor,
        env={"URL": url, "KEY": key},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(node.communicate(), 60)
    finally:
        if node.returncode is None:
            node.kill()
    assert node.returncode == 0, err.decode()
    return json.loads(out)


def grown(calls: Sequence[RecordedCall]) -> bool:
    first, second = calls
    prompts = prompt_ids(calls)
    whole = prompts[first.call_id] + first.sampled_ids
    anew = [name for call in calls for name in ("reencoded_turns", "foreign_turns") if call.counters.get(name)]
    return not anew and prompts[second.call_id][: len(whole)] == whole


@pytest.mark.real
@pytest.mark.parametrize("vendor", SEEN)
async def test_a_conversation_of_a_javascript_sdk_is_seen_and_recorded_whole(tmp_path: Path, vendor: str) -> None:
    first = THINK + FIRST if vendor in REASONS else FIRST
    async with proxy(tmp_path, in_turn(odd(first), odd("done"))) as world:
        access = await world.open()
        seen = await talk(tmp_path, vendor, f"{world.server.url}/s/{access.session_id}", access.key)
        calls = await world.settled(access)
    assert seen.pop("output_tokens") == [len(call.sampled_ids) for call in calls]
    assert seen == {
        "pieces": "Two. ",
        "calls": [["bash", {"command": "ls", "n": 2}], ["bash", {"command": "pwd"}]],
        "text": "done",
        **SEEN[vendor],
    }
    assert grown(calls)
    assert len(lawful(calls)) == 1


@pytest.mark.real
@pytest.mark.parametrize("waits", [True, False])
async def test_a_gemini_answer_that_breaks_off_is_an_error_of_the_sdk(tmp_path: Path, waits: bool) -> None:
    """Whether the error comes alone or behind other bytes; an older SDK is in Gemini CLI: see the matrix."""
    gate = Gate()
    broken = ScriptedAnswer(
        ids=odd_ids("one two three"), chunk_sizes=(3,), gates={3: gate} if waits else {}, abort_after=6
    )
    async with proxy(tmp_path, in_turn(broken)) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}"
        talking = asyncio.create_task(talk(tmp_path, "gemini-broken", url, access.key))
        if waits:
            await asyncio.wait_for(gate.reached.wait(), 30)
            gate.set()
        seen = await talking
        (call,) = await world.settled(access)
    assert "UNAVAILABLE" in seen["error"]
    assert call.completion is Completion.ENGINE_ABORTED
    assert "one two three".startswith(seen["text"])
