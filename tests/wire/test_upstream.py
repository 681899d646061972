"""Upstream engines: a proxy whose engine is a vendor's text API. The vendor is played by another proxy of ours."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.engines.scripted import Script, ScriptedAnswer
from openforgerl.engines.text_wire import TextReader
from openforgerl.engines.upstream import WIRES, UpstreamEngine
from openforgerl.errors import EngineAborted, EngineError
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from openforgerl.records import Completion, EngineFinish, Finish, RecordedCall, Role, Session
from openforgerl.store.sqlite import Store
from openforgerl.trajectories import accounting, rows
from proxy_world import ADMIN, BASH, FINISHED, World, call_text, codec, in_turn, proxy, template, tool_result

KINDS = ["openai", "anthropic"]
ASK: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "List the files."}]


@asynccontextmanager
async def student(
    teacher: World, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[AsyncOpenAI, Gateway, Store]]:
    access = await teacher.open()
    monkeypatch.setenv("TEACHER_KEY", access.key)
    config = RemoteEngineConfig(
        base_url=f"{teacher.server.url}/s/{access.session_id}", api_key_env="TEACHER_KEY", wire=kind, model="teacher"
    )
    engine = await UpstreamEngine.open(folder, config)
    store = Store.open(folder / "student")
    gateway = Gateway(engine=engine, store=store, template=template(), config=ProxyConfig())
    try:
        async with serve(gateway, admin_token=ADMIN) as server:
            mine = await gateway.open_session(Session(session_id="mine"))
            url = f"{server.url}/s/mine/v1"
            async with AsyncOpenAI(base_url=url, api_key=mine.key, max_retries=0, timeout=20) as client:
                yield client, gateway, store
    finally:
        await engine.aclose()
        await store.aclose()


@asynccontextmanager
async def taught(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, script: Script
) -> AsyncIterator[tuple[World, AsyncOpenAI, Gateway, Store]]:
    async with (
        proxy(folder, script) as teacher,
        student(teacher, folder, kind, monkeypatch) as (client, gateway, store),
    ):
        yield teacher, client, gateway, store


async def closed(gateway: Gateway, store: Store) -> tuple[RecordedCall, ...]:
    await gateway.close_session("mine", FINISHED)
    return store.calls("mine")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_teacher_calls_tools_and_what_it_says_is_text_in_no_row(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = in_turn(f"I look.\n{call_text()}{call_text(json.dumps({'command': 'pwd'}))}", "Two files.")
    async with (
        proxy(tmp_path, script) as teacher,
        student(teacher, tmp_path, kind, monkeypatch) as (client, gateway, store),
    ):
        first = await client.chat.completions.create(model="any", messages=ASK, tools=[BASH])
        said = first.choices[0].message
        results = [tool_result(call.id, "a b") for call in said.tool_calls or ()]
        history = [*ASK, said.model_dump(exclude_none=True), *results]
        second = await client.chat.completions.create(model="any", messages=history, tools=[BASH])
        counters = gateway.status("mine").counters
        calls = await closed(gateway, store)
        (seen,) = [call for call in teacher.store.calls("s1") if call.index == 1]
    assert [json.loads(call.function.arguments) for call in said.tool_calls or ()] == [
        {"command": "ls"},
        {"command": "pwd"},
    ]
    assert (first.choices[0].finish_reason, second.choices[0].message.content) == ("tool_calls", "Two files.")
    assert [call.finish for call in calls] == [Finish.TOOL_CALLS, Finish.STOP]
    assert [(call.sampled_ids, call.logprobs, call.versions, call.logprob_kind) for call in calls] == [
        ((), (), (), "none")
    ] * 2
    assert [call.answer.text.strip() for call in calls] == ["I look.", "Two files."]
    assert rows(calls) == ()
    assert accounting(calls, ()).sampled == 0
    assert counters["calls_without_ids"] == 2
    assert [message.text for message in seen.messages.new if message.role is Role.TOOL] == ["a b", "a b"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_asked_reaches_the_teacher(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        proxy(tmp_path, in_turn("one two STOP three")) as teacher,
        student(teacher, tmp_path, kind, monkeypatch) as (client, gateway, store),
    ):
        answer = await client.chat.completions.create(
            model="any",
            messages=ASK,
            max_tokens=50,
            temperature=0.5,
            top_p=0.9,
            stop=["STOP"],
            tools=[BASH],
            tool_choice="none",
        )
        await closed(gateway, store)
        (seen,) = teacher.store.calls("s1")
    assert (answer.choices[0].message.content or "").strip() == "one two"
    asked = seen.sampling_asked
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.stop) == (50, 0.5, 0.9, ("STOP",))
    assert (seen.model_asked, seen.tool_choice, len(seen.tools)) == ("teacher", "none", 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_teacher_that_is_cut_by_length_or_fails_is_recorded_as_that(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ScriptedAnswer(ids=codec().encode("some text that breaks off") * 3, fail_after=6)
    async with (
        proxy(tmp_path, in_turn("one two three four", broken)) as teacher,
        student(teacher, tmp_path, kind, monkeypatch) as (client, gateway, store),
    ):
        cut = await client.chat.completions.create(model="any", messages=ASK, max_tokens=3)
        with pytest.raises(APIStatusError) as failed:
            await client.chat.completions.create(model="any", messages=[*ASK, *ASK], max_tokens=40)
        calls = await closed(gateway, store)
    assert cut.choices[0].finish_reason == "length"
    assert failed.value.status_code == 503
    assert [call.completion for call in calls] == [Completion.COMPLETE, Completion.ENGINE_ABORTED]
    assert calls[1].answer.text
    assert rows(calls) == ()


async def test_weights_are_refused(tmp_path: Path) -> None:
    engine = await UpstreamEngine.open(tmp_path, RemoteEngineConfig(base_url="http://127.0.0.1:9"))
    with pytest.raises(EngineError, match="cannot be given weights") as refused:
        await engine.load_weights(tmp_path, 1)
    await engine.aclose()
    assert not refused.value.retryable


def chat(delta: object, finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}).encode()


def call(index: object, *, call_id: str | None = None, name: str | None = None, arguments: str = "") -> object:
    return {"tool_calls": [{"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}]}


FAULTS: dict[str, tuple[str, list[bytes]]] = {
    "no JSON": ("openai", [b"{"]),
    "no object": ("openai", [b"[]"]),
    "a call without a name": ("openai", [chat(call(0, call_id="a", arguments="{}"))]),
    "a call without an index": ("openai", [chat(call(None, call_id="a", name="bash"))]),
    "back to an earlier call": (
        "openai",
        [chat(call(0, call_id="a", name="f")), chat(call(1, call_id="b", name="f")), chat(call(0, arguments="{}"))],
    ),
    "a filter": ("openai", [chat({"content": "x"}, "content_filter")]),
    "a refusal": ("anthropic", [json.dumps({"type": "message_delta", "delta": {"stop_reason": "refusal"}}).encode()]),
    "an error": ("anthropic", [json.dumps({"type": "error", "error": {"type": "overloaded_error"}}).encode()]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_stream_is_an_error(fault: str) -> None:
    kind, events = FAULTS[fault]
    reader: TextReader = WIRES[kind].reader()
    *before, last = events
    for data in before:
        reader.read(data)
    with pytest.raises(EngineError) as raised:
        reader.read(last)
    assert isinstance(raised.value, EngineAborted) == (fault == "an error")


def test_the_finish_of_a_stream_without_calls_is_a_stop() -> None:
    assert WIRES["openai"].reader().read(chat({}, "tool_calls")).finish is EngineFinish.STOP
