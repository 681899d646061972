"""`openforgerl serve` over engines that are servers elsewhere: the fixed config, a call, its rows."""

import asyncio
import json
import shutil
import signal
import urllib.request
from pathlib import Path

import pytest
from test_serve_command import post

from engine_servers import EngineServer, Json, Script, Step, completion, echoing, generation, serving
from serve_process import ROOT, start

CONFIG = """
[model]
path = "{model}"
[engine]
type = "{type}"
base_url = "{url}"
[proxy]
host = "127.0.0.1"
port = 0
admin_token_env = "MY_TOKEN"
[store]
path = "{store}"
"""


def completions(body: Json) -> list[Step]:
    return echoing(body, [completion([75]), completion(body["stop_token_ids"][:1], "stop")])


def generations(body: Json) -> list[Step]:
    end = body["sampling_params"]["stop_token_ids"][0]
    return [generation(body, [75]), generation(body, [75, end], {"type": "stop", "matched": end})]


@pytest.mark.parametrize(("kind", "script"), [("vllm", completions), ("sglang", generations)])
async def test_the_fixed_config_serves_and_records(tmp_path: Path, kind: str, script: Script) -> None:
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests/fixtures/tiny-chatml", model)
    async with serving(EngineServer(script=script)) as (server,):
        config = tmp_path / "proxy.toml"
        config.write_text(CONFIG.format(model=model, type=kind, url=server.url, store=tmp_path / "store"))
        running = await asyncio.to_thread(start, config, MY_TOKEN="secret")
        try:
            server.statuses = [503]
            answer, rows = await asyncio.to_thread(called, running.url)
            metrics = await asyncio.to_thread(got, f"{running.url}/metrics", "secret")
        finally:
            running.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(running.process.wait, 30)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert b"openforgerl_engine_requests_repeated_total 1\n" in metrics
    (row,) = rows["rows"]
    assert (row["loss_mask"][-2:], row["logprobs"][-2:], row["logprob_kind"]) == ([1, 1], [-0.5, -0.5], "sampled")


def called(url: str) -> tuple[Json, Json]:
    made = post(f"{url}/sessions", "secret", {"rollout_id": "r1"})
    call = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    urls = made["base_urls"]
    assert isinstance(urls, dict)
    answer = post(f"{urls['openai']}/chat/completions", str(made["key"]), call)
    post(f"{url}/sessions/{made['session_id']}/close", "secret", {"ended_by": "finished"})
    return answer, json.loads(got(f"{url}/sessions/{made['session_id']}/rows", "secret"))


def got(url: str, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())
