"""The vllm engine against a server of ours that speaks the documented wire: slow, cut, malformed and lying streams."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_servers import STOP, Cut, EngineServer, Json, Raw, Script, Step, completion, echoing, honest, serving
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.sse import EventSplitter
from openforgerl.engines.vllm import VllmEngine
from openforgerl.errors import ConfigError, EngineAborted, EngineError, EngineTimeout
from openforgerl.records import EngineFinish, GenerateChunk, GenerateRequest, Sampling

PROMPT = (5, 40, 41)


def ask(prompt: Sequence[int] = PROMPT, *, max_tokens: int = 8, **fields: Any) -> GenerateRequest:
    schema = fields.pop("output_schema", "")
    sampling = Sampling(**{"temperature": 1.0, "max_tokens": max_tokens, **fields})
    return GenerateRequest(
        request_id="r", session_id="s", prompt_ids=tuple(prompt), sampling=sampling, stop_ids=(STOP,),
        output_schema=schema,
    )  # fmt: skip


@asynccontextmanager
async def world(script: Script = honest, **config: Any) -> AsyncIterator[tuple[EngineServer, VllmEngine]]:
    async with serving(EngineServer(script=script)) as (server,):
        engine = await VllmEngine.open(Path("none"), RemoteEngineConfig(base_url=server.url, **config))
        try:
            yield server, engine
        finally:
            await engine.aclose()


def plainly(*events: Step) -> Script:
    """The echo first, then these."""
    return lambda body: [*echoing(body, [completion([])]), *events]


async def taken(call: AsyncGenerator[GenerateChunk, None]) -> tuple[list[GenerateChunk], EngineError | None]:
    """What came, and what ended it."""
    chunks: list[GenerateChunk] = []
    try:
        async with asyncio.timeout(30), aclosing(call):
            async for chunk in call:
                chunks.append(chunk)
    except EngineError as error:
        return chunks, error
    return chunks, None


def ids(chunks: Sequence[GenerateChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids]


async def test_every_setting_of_the_sampling_is_sent_by_name_so_that_no_default_of_the_model_folder_rules() -> None:
    async with world() as (server, engine):
        await taken(engine.generate(ask()))
    sent = server.calls[0]
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0}
    more = {"frequency_penalty": 0.0, "repetition_penalty": 1.0, "ignore_eos": True, "stop_token_ids": [STOP]}
    assert {**sent, **plain, **more} == sent
    assert (sent["prompt"], sent["max_tokens"], "seed" in sent) == (list(PROMPT), 8, False)


async def test_what_was_asked_of_the_sampling_is_sent() -> None:
    wanted = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 3, "presence_penalty": 0.5,
              "frequency_penalty": 0.25, "repetition_penalty": 1.1}  # fmt: skip
    async with world() as (server, engine):
        await taken(engine.generate(ask(output_schema='{"type": "object"}', **wanted)))
    assert {**server.calls[0], **wanted} == server.calls[0]
    assert server.calls[0]["structured_outputs"] == {"json": {"type": "object"}}


@pytest.mark.parametrize("raw", [True, False])
async def test_the_kind_of_log_probs_is_measured(raw: bool) -> None:
    async with serving(EngineServer(raw_logprobs=raw)) as (server,):
        engine = await VllmEngine.open(Path("none"), RemoteEngineConfig(base_url=server.url))
        await engine.aclose()
    assert engine.logprob_kind == ("raw" if raw else "sampled")


@pytest.mark.parametrize("spaced", [True, False])
async def test_the_echo_is_known_however_it_is_printed(spaced: bool) -> None:
    async with world() as (server, engine):
        server.spaced = spaced
        chunks, error = await taken(engine.generate(ask()))
        assert engine.counters == {}
    assert error is None
    assert ids(chunks) == [97] * 5 + [STOP]


LIES = {
    "another prompt": lambda body: [completion([97], "length", prompt_token_ids=[*body["prompt"], 1])],
    "no echo": lambda body: [completion([97], "length")],
    "a shortened prompt": lambda body: [completion([97], "length", prompt_token_ids=body["prompt"][1:])],
}


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("lie", LIES)
async def test_a_prompt_that_is_not_the_one_sent_fails_the_call_before_any_id_is_taken(lie: str, spaced: bool) -> None:
    async with world(LIES[lie]) as (server, engine):
        server.spaced = spaced
        chunks, error = await taken(engine.generate(ask()))
        assert engine.counters["prompts_not_echoed"] == 1
    assert chunks == []
    assert error is not None
    assert (error.code, isinstance(error, EngineAborted)) == ("prompt_not_echoed", False)


WITHOUT = {
    "no log-probs": completion([97], logprobs=None),
    "a null log-prob": completion([97], logprobs={"token_logprobs": [None]}),
    "the number for none": completion([97], logprobs={"token_logprobs": [-9999.0]}),
    "fewer log-probs": completion([97, 98], logprobs={"token_logprobs": [-0.5]}),
    "ids lost in a chunk": completion([97], token_ids=None),
    "ids lost at the end": completion([97], "stop", token_ids=[]),
    "an id that is text": completion([97], token_ids=["97"]),
    "a stop id that it keeps": completion([97], "stop", stop_reason=STOP),
    "ids behind a stop id": completion([STOP, 97]),
    "more ids than asked": completion([97] * 9),
    "an end too early": completion([97], "length"),
    "no JSON": Raw(b'data: {"choices": [{"tok\n\n'),
    "no object": Raw(b"data: [1, 2]\n\n"),
    "choices that are text": Raw(b'data: {"choices": "none"}\n\n'),
}


@pytest.mark.parametrize("lie", WITHOUT)
async def test_what_cannot_be_believed_fails_the_call_and_keeps_what_came_before(lie: str) -> None:
    async with world(plainly(completion([98]), WITHOUT[lie])) as (_, engine):
        chunks, error = await taken(engine.generate(ask()))
        assert engine.counters["answers_not_believed"] == 1
    assert ids(chunks) == [98]
    assert error is not None
    assert not isinstance(error, EngineAborted)


async def test_ids_behind_the_end_fail_the_call() -> None:
    async with world(plainly(completion([STOP], "stop"), completion([97]))) as (_, engine):
        _, error = await taken(engine.generate(ask()))
    assert error is not None


@pytest.mark.parametrize(
    ("sampled", "said", "finish"),
    [
        ([97, STOP], "stop", EngineFinish.STOP),
        ([97, STOP], "tool_calls", EngineFinish.STOP),
        ([97] * 8, "tool_calls", EngineFinish.LENGTH),
        ([97] * 8, "length", EngineFinish.LENGTH),
        ([97] * 7 + [STOP], "length", EngineFinish.STOP),
        ([97, 98], "abort", EngineFinish.ABORT),
    ],
)
async def test_the_finish_is_the_true_one_whatever_it_is_called(
    sampled: list[int], said: str, finish: EngineFinish
) -> None:
    async with world(plainly(completion(sampled, said))) as (_, engine):
        chunks, error = await taken(engine.generate(ask()))
    assert error is None
    assert (ids(chunks), chunks[-1].finish) == (sampled, finish)


async def test_a_stop_without_its_id_is_counted() -> None:
    async with world(plainly(completion([97, 98], "stop"))) as (_, engine):
        chunks, _ = await taken(engine.generate(ask()))
        assert engine.counters["stops_without_an_id"] == 1
    assert chunks[-1].finish is EngineFinish.STOP


ENDS: dict[str, list[Step]] = {
    "the stream ends": [],
    "the connection breaks": [Cut()],
    "half an event": [Raw(b'data: {"choices"'), Cut()],
    "an error in the stream": [{"error": {"message": "EngineCore encountered an issue", "code": 500}}],
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_without_an_end_is_an_abort_and_keeps_its_ids(end: str) -> None:
    gate = asyncio.Event()
    async with world(plainly(completion([97, 98]), gate, *ENDS[end])) as (_, engine):
        call = engine.generate(ask())
        first = await anext(call)
        gate.set()
        _, error = await taken(call)
    assert first.ids == (97, 98)
    assert isinstance(error, EngineAborted)


async def test_a_stall_is_a_timeout() -> None:
    async with world(plainly(completion([97]), asyncio.Event()), silence_timeout_s=0.2) as (_, engine):
        chunks, error = await taken(engine.generate(ask()))
    assert ids(chunks) == [97]
    assert isinstance(error, EngineTimeout)


async def test_closing_a_call_cancels_it_at_the_server() -> None:
    async with world(plainly(completion([97]), asyncio.Event())) as (server, engine):
        call = engine.generate(ask())
        await anext(call)
        await call.aclose()
        await asyncio.wait_for(server.cancelled.wait(), 10)


async def test_a_busy_server_is_asked_again_and_a_refusal_is_not() -> None:
    async with world() as (server, engine):
        server.statuses = [503, 429]
        assert (await taken(engine.generate(ask())))[1] is None
        server.statuses = [400]
        _, error = await taken(engine.generate(ask()))
    assert len(server.calls) == 4
    assert engine.counters["requests_repeated"] == 2
    assert error is not None
    assert (error.retryable, error.http_status) == (False, 400)


async def test_a_server_that_stays_busy_is_said_to_be() -> None:
    async with world() as (server, engine):
        server.statuses = [503] * 10
        _, error = await taken(engine.generate(ask()))
    assert error is not None
    assert (error.code, error.retryable, len(server.calls)) == ("engine_busy", True, 4)


async def test_nothing_is_asked_again_once_an_id_came() -> None:
    async with world(plainly(completion([97]), Cut())) as (server, engine):
        await taken(engine.generate(ask()))
    assert len(server.calls) == 1


def holding(gate: asyncio.Event) -> Script:
    """Stands still behind the first two ids of the first call."""
    started: list[Json] = []

    def script(body: Json) -> list[Step]:
        steps = honest(body)
        started.append(body)
        return [*steps[:2], gate, *steps[2:]] if len(started) == 1 else steps

    return script


async def test_a_late_call_goes_on_behind_its_ids_with_the_new_weights(tmp_path: Path) -> None:
    async with world(holding(asyncio.Event()), update_drain_s=0.0) as (server, engine):
        call = engine.generate(ask(seed=7))
        first = [await anext(call)]
        while len(ids(first)) < 2:
            first.append(await anext(call))
        rest = asyncio.ensure_future(taken(call))
        await asyncio.sleep(0)
        await engine.load_weights(tmp_path, 4)
        chunks, error = await rest
        assert engine.counters["calls_resumed"] == 1
    assert error is None
    assert ids([*first, *chunks]) == [97, 97, 97, 97, 97, STOP]
    assert [{chunk.policy_version for chunk in part} for part in (first, chunks)] == [{0}, {4}]
    again = server.calls[1]
    assert (again["prompt"], again["max_tokens"], again["seed"]) == ([*PROMPT, 97, 97], 6, 9)
    assert [path for path, _ in server.questions] == ["/collective_rpc", "/reset_prefix_cache"]
    assert server.questions[0][1] == {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert [call["cache_salt"] for call in server.calls] == ["policy-0", "policy-4"]


async def test_an_update_waits_for_calls_in_flight_and_new_calls_wait_for_it(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with world(holding(gate)) as (server, engine):
        call = engine.generate(ask())
        first = await anext(call)
        rest = asyncio.ensure_future(taken(call))
        update = asyncio.ensure_future(engine.load_weights(tmp_path, 4))
        await asyncio.sleep(0)
        new = asyncio.ensure_future(taken(engine.generate(ask())))
        await asyncio.sleep(0.05)
        assert (len(server.calls), server.questions, new.done()) == (1, [], False)
        gate.set()
        chunks, error = await rest
        await update
        late, _ = await new
    assert error is None
    assert {chunk.policy_version for chunk in [first, *chunks]} == {0}
    assert {chunk.policy_version for chunk in late} == {4}


async def test_a_late_call_whose_rest_would_be_another_is_aborted(tmp_path: Path) -> None:
    async with world(holding(asyncio.Event()), update_drain_s=0.0) as (server, engine):
        call = engine.generate(ask(output_schema="{}"))
        await anext(call)
        rest = asyncio.ensure_future(taken(call))
        await asyncio.sleep(0)
        await engine.load_weights(tmp_path, 4)
        assert isinstance((await rest)[1], EngineAborted)
    assert len(server.calls) == 1


async def test_weights_that_no_server_loads_are_an_error_and_nothing_is_sampled_until_some_are(tmp_path: Path) -> None:
    async with world() as (server, engine):
        server.updates_fail = True
        with pytest.raises(EngineError):
            await engine.load_weights(tmp_path, 4)
        assert engine.policy_version == 0
        _, error = await taken(engine.generate(ask()))
        assert error is not None
        assert "newest weights" in str(error)
        server.updates_fail = False
        await engine.load_weights(tmp_path, 4)
        assert (await taken(engine.generate(ask())))[0][-1].policy_version == 4


@pytest.mark.parametrize(("device", "refused"), [("cpu", True), ("cuda", False)])
async def test_tied_weights_are_refused_where_the_output_layer_would_stay(
    tmp_path: Path, device: str, refused: bool
) -> None:
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    async with world() as (server, engine):
        server.device = device
        if refused:
            with pytest.raises(EngineError, match="tie_word_embeddings"):
                await engine.load_weights(tmp_path, 4)
        else:
            await engine.load_weights(tmp_path, 4)
    assert bool(server.questions) != refused


async def test_a_server_that_is_not_there_is_one_line_that_says_what_to_do() -> None:
    async with serving(EngineServer()) as (server,):
        url = server.url
    with pytest.raises(ConfigError, match=r"\[engine\] base_url: .*start the engine first"):
        await VllmEngine.open(Path("none"), RemoteEngineConfig(base_url=url))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "neither is given"),
        ({"base_url": "http://a", "base_urls": ("http://b",)}, "both are given"),
        ({"base_url": "127.0.0.1:8001"}, "write a URL"),
        ({"base_urls": ("http://a/v1", "http://a/")}, "twice"),
        ({"base_url": "http://a", "api_key_env": "OPENFORGERL_NO_SUCH_KEY"}, "OPENFORGERL_NO_SUCH_KEY"),
    ],
)
async def test_a_wrong_address_is_one_line(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await VllmEngine.open(Path("none"), RemoteEngineConfig(**fields))


@given(cuts=st.lists(st.integers(1, 40)), events=st.lists(st.integers(), max_size=5), crlf=st.booleans())
def test_events_are_the_same_whatever_the_cuts_between_reads(cuts: list[int], events: list[int], crlf: bool) -> None:
    end = b"\r\n" if crlf else b"\n"
    whole = b"".join(b": ping" + end + b"data: " + json.dumps([each]).encode() + end + end for each in events)
    splitter, got = EventSplitter(), []
    for size in [*cuts, len(whole) + 1]:
        got += splitter.feed(whole[:size])
        whole = whole[size:]
    assert [json.loads(each) for each in got] == [[each] for each in events]
