"""The sglang engine against a server of ours that speaks the documented wire: there is no SGLang for a CPU here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from test_vllm_engine import ask, ids, taken

from engine_servers import STOP, EngineServer, Json, Script, Step, generation, honest_generation, serving
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.sglang import SglangEngine
from openforgerl.errors import EngineAborted
from openforgerl.records import EngineFinish


@asynccontextmanager
async def world(script: Script = honest_generation, **config: Any) -> AsyncIterator[tuple[EngineServer, SglangEngine]]:
    async with serving(EngineServer(script=script)) as (server,):
        engine = await SglangEngine.open(Path("none"), RemoteEngineConfig(base_url=server.url, **config))
        try:
            yield server, engine
        finally:
            await engine.aclose()


def incremental(body: Json) -> list[Step]:
    """Each event brings only what is new."""
    whole = honest_generation(body)
    events: list[Step] = []
    for count, event in enumerate(whole, start=1):
        assert isinstance(event, dict)
        meta = event["meta_info"]
        events.append({**event, "meta_info": {**meta, "output_token_logprobs": meta["output_token_logprobs"][-1:]}})
        assert meta["completion_tokens"] == count
    return events


@pytest.mark.parametrize("script", [honest_generation, incremental])
async def test_ids_come_once_whether_events_repeat_them_or_not(script: Script) -> None:
    async with world(script) as (server, engine):
        chunks, error = await taken(engine.generate(ask()))
        assert engine.logprob_kind == "sampled"
    assert error is None
    assert ids(chunks) == [97] * 5 + [STOP]
    assert chunks[-1].finish is EngineFinish.STOP
    sent = server.calls[0]["sampling_params"]
    assert {**sent, "top_p": 1.0, "repetition_penalty": 1.0, "ignore_eos": True, "no_stop_trim": True} == sent


LIES = {
    "another prompt": ({"prompt_token_ids": [5, 40, 42]}, "prompt_not_echoed"),
    "a longer prompt": ({"prompt_tokens": 4}, "prompt_not_echoed"),
    "lost ids": ({"output_token_logprobs": []}, "engine_error"),
    "no log-probs": ({"output_token_logprobs": None}, "engine_error"),
    "pairs that are none": ({"output_token_logprobs": [97]}, "engine_error"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_cannot_be_believed_fails_the_call(lie: str) -> None:
    meta, code = LIES[lie]
    async with world(lambda body: [generation(body, [97], **meta)]) as (_, engine):
        chunks, error = await taken(engine.generate(ask()))
    assert ids(chunks) == []
    assert error is not None
    assert (error.code, isinstance(error, EngineAborted)) == (code, False)


async def test_an_abort_is_told_from_a_stop() -> None:
    async with world(lambda body: [generation(body, [97, 98], {"type": "abort", "message": "paused"})]) as (_, engine):
        chunks, error = await taken(engine.generate(ask()))
    assert error is None
    assert (ids(chunks), chunks[-1].finish) == ([97, 98], EngineFinish.ABORT)


async def test_weights_come_from_a_folder_and_flush_the_cache(tmp_path: Path) -> None:
    async with world() as (server, engine):
        await engine.load_weights(tmp_path, 3)
        chunks, _ = await taken(engine.generate(ask()))
    body = {"model_path": str(tmp_path), "flush_cache": True, "weight_version": "3"}
    assert server.questions == [("/update_weights_from_disk", body)]
    assert {chunk.policy_version for chunk in chunks} == {3}
