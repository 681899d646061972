"""kill -9 of `openforgerl serve` under load: whatever a client saw finished is in the store, once, and can be read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from openforgerl.records import Completion, EndedBy
from openforgerl.store.sqlite import Store
from proxy_world import lawful
from serve_process import Serving, start, write_config

TOKEN = "a-token-of-my-own"


async def opened(http: aiohttp.ClientSession, serving: Serving) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with http.post(f"{serving.url}/sessions", json={}, headers=headers) as response:
        return dict(await response.json())


async def talk(http: aiohttp.ClientSession, session: dict[str, Any], finished: asyncio.Queue[tuple[str, str]]) -> None:
    """A growing conversation, streamed, until the server is gone; what came to its end is told by its call's id."""
    url = f"{session['base_urls']['openai']}/chat/completions"
    headers = {"Authorization": f"Bearer {session['key']}"}
    messages: list[dict[str, str]] = []
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        while True:
            messages.append({"role": "user", "content": f"and {len(messages)}?"})
            async with http.post(url, json={"messages": messages, "stream": True}, headers=headers) as response:
                lines = [line.decode().strip() async for line in response.content if line.strip()]
            assert lines[-1] == "data: [DONE]"
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
            text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
            messages.append({"role": "assistant", "content": text})
            finished.put_nowait((session["session_id"], chunks[0]["id"].removeprefix("chatcmpl-")))


async def until_killed(serving: Serving, clients: int, count: int) -> set[tuple[str, str]]:
    """What was seen finished, when at least `count` calls were and others were under way."""
    finished: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http, asyncio.TaskGroup() as group:
        sessions = [await opened(http, serving) for _ in range(clients)]
        for session in sessions:
            group.create_task(talk(http, session, finished))
        seen = {await asyncio.wait_for(finished.get(), 60) for _ in range(count)}
        serving.process.kill()
    while not finished.empty():
        seen.add(finished.get_nowait())
    return seen


def audit(folder: Path, seen: set[tuple[str, str]]) -> None:
    store = Store.open(folder, read_only=True)
    recorded = []
    for session in store.sessions():
        calls = store.calls(session.session_id)
        lawful(calls)
        recorded += [(call.session_id, call.call_id) for call in calls if call.completion is Completion.COMPLETE]
        assert len(store.intents(session.session_id)) <= 1, "at most the call that was under way"
    assert len(recorded) == len(set(recorded))
    assert seen <= set(recorded)
    store.close()


async def killed_and_audited(tmp_path: Path, *, clients: int, counts: tuple[int, ...]) -> None:
    config, folder = write_config(tmp_path), tmp_path / "runs/serve/store"
    seen: set[tuple[str, str]] = set()
    for count in counts:
        serving = start(config, OPENFORGERL_ADMIN_TOKEN=TOKEN)
        try:
            seen |= await until_killed(serving, clients, count)
        finally:
            serving.process.kill()
            assert serving.process.wait(timeout=30) == -signal.SIGKILL
        audit(folder, seen)
    again = start(config, OPENFORGERL_ADMIN_TOKEN=TOKEN)
    assert again.stop(signal.SIGTERM) == 0
    audit(folder, seen)
    store = Store.open(folder, read_only=True)
    endings = {session.ending.ended_by for session in store.sessions() if session.ending}
    assert endings == {EndedBy.INFRA}, "what the killed one left open is sealed, and is data, not a zero"
    assert all(session.ending for session in store.sessions())
    store.close()


async def test_what_was_seen_finished_survives_a_kill_under_load(tmp_path: Path) -> None:
    await killed_and_audited(tmp_path, clients=8, counts=(9, 40))


@pytest.mark.real
async def test_what_was_seen_finished_survives_kills_under_heavy_load(tmp_path: Path) -> None:
    await killed_and_audited(tmp_path, clients=200, counts=(1, 500, 1000, 3000))
