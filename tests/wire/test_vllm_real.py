"""A real vLLM on the CPU behind the real proxy. The last test kills it."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI

from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.vllm import VllmEngine
from openforgerl.errors import EngineError
from openforgerl.harnesses.installing import cache_folder
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from openforgerl.records import Completion, Finish, RecordedCall, Sampling, Session
from openforgerl.store.sqlite import Store
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import Template
from openforgerl.trajectories import prompt_ids
from proxy_world import ADMIN, BASH, FINISHED, lawful
from vllm_server import VllmServer

pytestmark = [pytest.mark.real, pytest.mark.vllm, pytest.mark.timeout(600)]
MODEL = cache_folder() / "models" / "smollm2-135m-instruct"
GAP = 2e-3
"""Both compute in float32, in another order."""
STORY = [{"role": "user", "content": "Write a very long story about a dragon."}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with an output layer of its own: vLLM on a CPU cannot renew one that is tied."""
    return written(tmp_path_factory.mktemp("untied"), noise=0.0, tied=False)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    running = VllmServer.start(model, tmp_path_factory.mktemp("vllm") / "log").wait()
    yield running
    running.kill()


def written(folder: Path, *, noise: float, tied: bool) -> Path:
    """SmolLM2, with so much noise in its weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.add_(noise * weight.std() * torch.randn_like(weight))
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)
    return folder


class Proxied:
    """The proxy over that server, and one client."""

    def __init__(self, gateway: Gateway, store: Store, engine: VllmEngine, url: str) -> None:
        self.gateway, self.store, self.engine, self.url = gateway, store, engine, url
        self.opened = 0
        self.clients: list[Any] = []

    async def client(self, **pins: Any) -> tuple[str, Any]:
        self.opened += 1
        access = await self.gateway.open_session(Session(session_id=f"s{self.opened}", sampling=Sampling(**pins)))
        client = AsyncOpenAI(
            base_url=f"{self.url}/s/{access.session_id}/v1", api_key=access.key, max_retries=0, timeout=300
        )
        self.clients.append(client)
        return access.session_id, client

    async def settled(self, session_id: str) -> tuple[RecordedCall, ...]:
        await self.gateway.close_session(session_id, FINISHED)
        calls = self.store.calls(session_id)
        lawful(calls)
        return calls


@asynccontextmanager
async def proxied(server: VllmServer, folder: Path, **config: Any) -> AsyncIterator[Proxied]:
    engine = await VllmEngine.open(MODEL, RemoteEngineConfig(base_url=server.url, **config))
    store = Store.open(folder / "store")
    shape = Template.load(Codec.load(MODEL))
    gateway = Gateway(engine=engine, store=store, template=shape, config=ProxyConfig())
    try:
        async with serve(gateway, admin_token=ADMIN) as listening:
            world = Proxied(gateway, store, engine, listening.url)
            yield world
            for client in world.clients:
                await client.close()
    finally:
        await engine.aclose()
        await store.aclose()


async def text_of(client: Any, messages: list[dict[str, str]], **fields: Any) -> tuple[str, str | None]:
    answer = await client.chat.completions.create(model="policy", messages=messages, **fields)
    return answer.choices[0].message.content or "", answer.choices[0].finish_reason


def reference_gap(folder: Path, calls: tuple[RecordedCall, ...], call: RecordedCall) -> float:
    """Most that a recorded log-prob is away from a plain forward over the recorded ids."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = prompt_ids(calls)[call.call_id]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + call.sampled_ids])).logits[0, len(prompt) - 1 : -1]
    temperature = call.sampling_used.temperature or 1.0
    expected = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(call.sampled_ids)[:, None])[:, 0]
    return float((expected - torch.tensor(call.logprobs)).abs().max())


async def test_a_streamed_call_with_tools_is_recorded_as_it_was_sampled(server: VllmServer, tmp_path: Path) -> None:
    async with proxied(server, tmp_path) as world:
        session, client = await world.client(temperature=0.7)
        stream = await client.chat.completions.create(
            model="policy", messages=STORY, tools=[BASH], max_tokens=24, stream=True
        )
        events = [event async for event in stream]
        calls = await world.settled(session)
        assert world.engine.counters == {}
    assert events[-1].choices[0].finish_reason in ("length", "stop", "tool_calls")
    (call,) = calls
    assert (call.completion, call.logprob_kind, call.delivered.state) == (Completion.COMPLETE, "sampled", "full")
    assert len(call.sampled_ids) == len(call.logprobs) > 0
    assert reference_gap(MODEL, calls, call) < GAP


async def test_a_client_that_leaves_cancels_its_call_at_the_server(server: VllmServer, tmp_path: Path) -> None:
    async with proxied(server, tmp_path) as world:
        session, client = await world.client(temperature=1.0)
        stream = await client.chat.completions.create(model="policy", messages=STORY, stream=True)
        async for event in stream:
            if event.choices[0].delta.content:
                break
        await stream.close()
        async with asyncio.timeout(30):
            while await asyncio.to_thread(server.metric, "vllm:num_requests_running"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        (call,) = await world.settled(session)
    assert call.completion is Completion.CLIENT_ABORTED
    assert 0 < len(call.sampled_ids) < 1900


async def test_stop_length_and_abort_are_told_apart(server: VllmServer, tmp_path: Path) -> None:
    async with proxied(server, tmp_path) as world:
        session, client = await world.client(temperature=0.0)
        _, stopped = await text_of(client, [{"role": "user", "content": "Say hi"}], max_tokens=200)
        _, cut = await text_of(client, STORY, max_tokens=5)
        late = asyncio.ensure_future(
            text_of(client, [{"role": "user", "content": "Tell me about the sea, at length."}])
        )
        await sampling(server)
        await asyncio.to_thread(post, server, "/pause?mode=abort")
        with pytest.raises(APIError, match="the engine"):
            await late
        await asyncio.to_thread(post, server, "/resume")
        calls = await world.settled(session)
    assert (stopped, cut) == ("stop", "length")
    assert [call.finish for call in calls] == [Finish.STOP, Finish.LENGTH, None]
    assert [call.ends_turn for call in calls[:2]] == [True, False]
    assert calls[2].completion is Completion.ENGINE_ABORTED


async def sampling(server: VllmServer) -> None:
    """Until a call is being sampled."""
    before = await asyncio.to_thread(server.metric, "vllm:generation_tokens_total")
    async with asyncio.timeout(60):
        while await asyncio.to_thread(server.metric, "vllm:generation_tokens_total") <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def post(server: VllmServer, path: str) -> None:
    request = urllib.request.Request(server.url + path, b"", method="POST")
    with urllib.request.urlopen(request, timeout=60):
        pass


async def test_an_answer_follows_its_schema(server: VllmServer, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    async with proxied(server, tmp_path) as world:
        session, client = await world.client(temperature=1.0)
        text, _ = await text_of(
            client,
            [{"role": "user", "content": "Who are you?"}],
            max_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "who", "schema": schema}},
        )
        (call,) = await world.settled(session)
    assert json.loads(text).keys() == {"name", "age"}
    assert call.schema_enforced


async def test_64_calls_at_once_are_all_accounted_for(server: VllmServer, tmp_path: Path) -> None:
    async with proxied(server, tmp_path) as world:
        opened = [await world.client(temperature=1.0) for _ in range(64)]
        asked = [[{"role": "user", "content": f"Count to {number}."}] for number in range(64)]
        await asyncio.gather(
            *(text_of(client, messages, max_tokens=6) for (_, client), messages in zip(opened, asked, strict=True))
        )
        recorded = [await world.settled(session) for session, _ in opened]
    assert [call.completion for (call,) in recorded] == [Completion.COMPLETE] * 64
    assert all(len(call.sampled_ids) in range(1, 7) for (call,) in recorded)


async def test_new_weights_are_sampled_from_and_a_call_in_flight_goes_on_with_them(
    server: VllmServer, model: Path, tmp_path: Path
) -> None:
    folder = await asyncio.to_thread(written, tmp_path / "new", noise=0.02, tied=False)
    async with proxied(server, tmp_path, update_drain_s=0.0) as world:
        session, client = await world.client(temperature=1.0)
        early = asyncio.ensure_future(text_of(client, STORY, max_tokens=120))
        await sampling(server)
        await world.gateway.load_weights(folder, 1)
        await early
        await text_of(client, [{"role": "user", "content": "And now?"}], max_tokens=16)
        calls = await world.settled(session)
        assert world.engine.counters == {"calls_resumed": 1}
        assert reference_gap(folder, calls, calls[1]) < GAP < reference_gap(MODEL, calls, calls[1])
        with pytest.raises(EngineError, match="tie_word_embeddings"):
            await world.gateway.load_weights(MODEL, 2)
        await world.gateway.load_weights(model, 2)
        session, client = await world.client(temperature=1.0)
        await text_of(client, [{"role": "user", "content": "And now?"}], max_tokens=16)
        again = await world.settled(session)
        assert reference_gap(MODEL, again, again[0]) < GAP
    assert [run.policy_version for run in calls[0].versions] == [0, 1]
    assert [run.policy_version for run in calls[1].versions] == [1]
    assert (calls[0].completion, [run.policy_version for run in again[0].versions]) == (Completion.COMPLETE, [2])


async def killed_on_the_way(server: VllmServer, stream: Any) -> None:
    async for event in stream:
        if event.choices[0].delta.content:
            server.kill()


async def test_a_killed_engine_leaves_the_call_recorded_as_far_as_it_came(server: VllmServer, tmp_path: Path) -> None:
    async with proxied(server, tmp_path) as world:
        session, client = await world.client(temperature=1.0)
        stream = await client.chat.completions.create(model="policy", messages=STORY, stream=True)
        with pytest.raises(APIError, match="engine"):
            await killed_on_the_way(server, stream)
        (call,) = await world.settled(session)
    assert call.completion is Completion.ENGINE_ABORTED
    assert 0 < len(call.sampled_ids) == len(call.logprobs)
