"""The official Anthropic SDK against a real proxy: what it gets, and what the store holds by then."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

import pictures
from messages_stream import read_stream
from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.proxy.access import SessionAccess
from openforgerl.records import Completion, Delivered, Finish, RecordedCall, Role
from openforgerl.trajectories import prompt_ids
from proxy_world import Gate, World, call_text, in_turn, lawful, odd, odd_ids, proxy

USER = {"role": "user", "content": "hi"}
BASH = {"name": "bash", "description": "Run.", "input_schema": {"type": "object", "properties": {}}}
PIXEL = base64.b64encode(pictures.PIXEL).decode()


def client_of(world: World, access: SessionAccess, **options: Any) -> AsyncAnthropic:
    url = f"{world.server.url}/s/{access.session_id}"
    given = {"base_url": url, "api_key": access.key, "auth_token": None, "max_retries": 0, "timeout": 20, **options}
    client = AsyncAnthropic(**given)
    world.stack.push_async_callback(client.close)
    return client


async def ask(client: AsyncAnthropic, *messages: Any, **fields: Any) -> Any:
    sent = list(messages) or [USER]
    return await client.messages.create(**{"model": "claude-x", "max_tokens": 900, "messages": sent, **fields})


async def streamed(client: AsyncAnthropic, *messages: Any, **fields: Any) -> Any:
    """The message that the SDK makes of the stream."""
    sent = {"model": "claude-x", "max_tokens": 900, "messages": list(messages) or [USER], **fields}
    async with client.messages.stream(**sent) as stream:
        return await stream.get_final_message()


def kept(message: Any) -> dict[str, Any]:
    """The answer as the SDK's user puts it into the history."""
    return {"role": "assistant", "content": message.content}


def result(call_id: str, content: Any = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def grown(calls: Sequence[RecordedCall]) -> bool:
    """Each prompt begins with the prompt and the answer before it, and no turn was encoded anew."""
    prompts = prompt_ids(calls)
    anew = sum(call.counters.get(name, 0) for call in calls for name in ("reencoded_turns", "foreign_turns"))
    return not anew and all(
        prompts[later.call_id][: len(prompts[call.call_id]) + len(call.sampled_ids)]
        == prompts[call.call_id] + call.sampled_ids
        for call, later in itertools.pairwise(calls)
    )


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_plain_answer_is_recorded_with_its_ids(tmp_path: Path, prefix: str) -> None:
    async with proxy(tmp_path, in_turn(odd("hello there"))) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}{prefix}"
        answer = await ask(client_of(world, access, base_url=url))
        assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "hello there"}]
        assert (answer.stop_reason, answer.stop_sequence, answer.model) == ("end_turn", None, "claude-x")
        (call,) = world.store.calls(access.session_id)
        assert (call.dialect, call.model_asked, call.finish) == ("messages", "claude-x", Finish.STOP)
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(call.prompt), len(call.sampled_ids))
        assert answer.id == f"msg_{call.call_id}"
        lawful(await world.settled(access))
        assert world.store.calls(access.session_id)[0].delivered == Delivered(state="full")


async def test_a_streamed_answer_is_the_plain_one(tmp_path: Path) -> None:
    text = "<think>\nhm\n</think>\n\nI look. " + call_text('{"b": 1.0}') + "\n" + call_text("{}")
    async with proxy(tmp_path, in_turn(odd(text))) as world:
        client = client_of(world, await world.open())
        plain, stream = await ask(client, tools=[BASH]), await streamed(client, tools=[BASH])
        assert [block.type for block in plain.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert plain.content[2].input == {"b": 1.0}
        assert (plain.content[0].thinking, plain.content[1].text, plain.stop_reason) == ("hm", "I look. ", "tool_use")
        same = {"thinking", "text", "name", "input"}
        assert [block.to_dict().keys() & same for block in plain.content] == [
            block.to_dict().keys() & same for block in stream.content
        ]
        for one, other in zip(plain.content, stream.content, strict=True):
            assert all(one.to_dict()[name] == other.to_dict()[name] for name in one.to_dict().keys() & same)
        assert (stream.stop_reason, stream.usage.output_tokens) == (plain.stop_reason, plain.usage.output_tokens)
        assert stream.usage.input_tokens == plain.usage.input_tokens


async def test_parallel_calls_come_back_as_ids(tmp_path: Path) -> None:
    text = "<think>\nhm\n</think>\n\nTwo. " + call_text('{"b":1.0,  "a": "x"}') + "\n" + call_text("{}")
    async with proxy(tmp_path, in_turn(odd(text), odd("done"))) as world:
        access = await world.open()
        client = client_of(world, access)
        first = await streamed(client, tools=[BASH])
        calls = [block for block in first.content if block.type == "tool_use"]
        assert len({call.id for call in calls}) == 2
        assert all(call.id.isalnum() for call in calls)
        results = [result(call.id, [{"type": "text", "text": "ok"}]) for call in calls]
        await streamed(client, USER, kept(first), {"role": "user", "content": results}, tools=[BASH])
        recorded = await world.settled(access)
        assert grown(recorded)
        assert len(lawful(recorded)) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_of_the_sdks_own_objects_grows_without_new_encoding(tmp_path: Path, stream: bool) -> None:
    think = "<think>\nlet me see\n</think>\n\n"
    answers = [odd(think + call_text()), odd(think + "Again. " + call_text('{"n": 2.50}')), odd("done")]
    async with proxy(tmp_path, in_turn(*answers)) as world:
        access = await world.open()
        client = client_of(world, access)
        messages: list[Any] = [USER]
        for number in range(3):
            answer = await (streamed if stream else ask)(client, *messages, tools=[BASH], system="Be brief.")
            uses = [block.id for block in answer.content if block.type == "tool_use"]
            reminder = {"type": "text", "text": f"reminder {number}"}
            messages += [kept(answer), {"role": "user", "content": [*map(result, uses)] or [reminder]}]
        recorded = await world.settled(access)
        assert [call.finish for call in recorded] == [Finish.TOOL_CALLS, Finish.TOOL_CALLS, Finish.STOP]
        assert grown(recorded)
        assert len(lawful(recorded)) == 1


async def test_signed_thinking_names_the_call_that_it_comes_from(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("<think>\nhm\n</think>\n\n" + call_text()), odd("done"))) as world:
        access = await world.open()
        client = client_of(world, access)
        first = await ask(client, tools=[BASH], thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
        emptied = [{**block.to_dict(), "thinking": ""} for block in first.content[:1]]
        redacted = [{"type": "redacted_thinking", "data": first.content[0].signature}]
        for thinking in (first.content[:1], emptied, redacted):
            turn = {"role": "assistant", "content": [*thinking, *first.content[1:]]}
            await ask(client, USER, turn, {"role": "user", "content": [result(first.content[1].id)]}, tools=[BASH])
        one, *others = await world.settled(access)
        prompts, seen = prompt_ids([one, *others]), len(one.prompt) + len(one.sampled_ids)
        assert len(others) == 3
        assert all(prompts[call.call_id][:seen] == prompts[one.call_id] + one.sampled_ids for call in others)
        assert not any(call.counters.get("reencoded_turns") for call in others)


async def test_a_conversation_grows_while_tools_are_found(tmp_path: Path) -> None:
    task = {"name": "task", "input_schema": {"type": "object"}, "defer_loading": True}
    async with proxy(
        tmp_path, in_turn(odd(call_text(name="bash")), odd(call_text("{}", "task")), odd("done"))
    ) as world:
        access = await world.open()
        client = client_of(world, access)
        first = await ask(client, tools=[BASH])
        found = [{"type": "tool_reference", "tool_name": "task"}]
        history = [USER, kept(first), {"role": "user", "content": [result(first.content[0].id, found)]}]
        second = await ask(client, *history, tools=[task, BASH])
        assert second.content[0].name == "task"
        history += [kept(second), {"role": "user", "content": [result(second.content[0].id)]}]
        await ask(client, *history, tools=[task, BASH])
        recorded = await world.settled(access)
        assert grown(recorded)
        assert '"name": "task"' in recorded[1].messages.new[-1].text


async def test_disabled_thinking_is_recorded_and_not_shown(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("<think>\nhm\n</think>\n\nhello"))) as world:
        access = await world.open()
        answer = await ask(client_of(world, access), thinking={"type": "disabled"})
        assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "hello"}]
        (call,) = await world.settled(access)
        assert call.answer.reasoning == "hm"


async def test_length_and_stop_sequences_are_stop_reasons(tmp_path: Path) -> None:
    script = in_turn(odd("one two three"), odd("one STOP three"), odd("one STOP three"))
    async with proxy(tmp_path, script) as world:
        access = await world.open()
        client = client_of(world, access)
        cut = await ask(client, max_tokens=3)
        assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "one")
        for way in (ask, streamed):
            stopped = await way(client, stop_sequences=["STOP", "never"])
            assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
            assert stopped.content[0].text == "one "
        calls = await world.settled(access)
        assert [call.finish for call in calls] == [Finish.LENGTH, Finish.STOP_STRING, Finish.STOP_STRING]


async def test_results_keep_their_order_and_the_error_flag(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(call_text() + "\n" + call_text("{}")), odd("done"))) as world:
        access = await world.open()
        client = client_of(world, access)
        first = await ask(client, tools=[BASH])
        one, two = [block.id for block in first.content]
        content = [{**result(two, "no"), "is_error": True}, result(one), {"type": "text", "text": "go on"}]
        await ask(client, USER, kept(first), {"role": "user", "content": content}, tools=[BASH])
        _, call = await world.settled(access)
        tail = call.messages.new[-3:]
        assert [(message.role, message.text, message.tool_call_id, message.is_error) for message in tail] == [
            (Role.TOOL, "no", two, True), (Role.TOOL, "ok", one, False), (Role.USER, "go on", "", False),
        ]  # fmt: skip


@pytest.mark.parametrize("source", ["base64", "url"])
async def test_a_model_without_eyes_refuses_images(tmp_path: Path, source: str) -> None:
    data = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    image = {"type": "image", "source": data if source == "base64" else {"type": "url", "url": "http://127.0.0.1/a"}}
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        with pytest.raises(anthropic.BadRequestError, match="image"):
            await ask(client_of(world, access), {"role": "user", "content": [image]})
        assert await world.settled(access) == ()


async def test_tokens_are_counted_without_a_call(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()
        client = client_of(world, access)
        sent: Any = {"model": "claude-x", "system": "s", "messages": [USER], "tools": [BASH]}
        counts = await asyncio.gather(*[client.messages.count_tokens(**sent) for _ in range(10)])
        longer = await client.beta.messages.count_tokens(**{**sent, "messages": [USER, USER]})
        answer = await client.messages.create(**sent, max_tokens=9)
        assert {count.input_tokens for count in counts} == {answer.usage.input_tokens}
        assert longer.input_tokens > answer.usage.input_tokens
        assert len(await world.settled(access)) == 1


async def test_the_beta_client_and_bearer_keys_work_as_well(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()
        client = client_of(world, access, api_key=None, auth_token=access.key)
        async with client.beta.messages.stream(
            model="claude-x",
            max_tokens=9,
            messages=[{"role": "user", "content": "hi"}],
            betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        ) as stream:
            assert await stream.get_final_text() == "hello"
        (call,) = await world.settled(access)
        assert call.labels["ignored"] == "context_management"


async def test_the_blocking_sdk_works_as_well(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()

        def talk() -> str:
            url = f"{world.server.url}/s/{access.session_id}"
            with Anthropic(base_url=url, api_key=access.key) as client:
                message = client.messages.create(model="", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
                return "".join(block.text for block in message.content if block.type == "text")

        assert await asyncio.to_thread(talk) == "hello"


async def test_models_are_listed_in_the_callers_format(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), model_name="tiny") as world:
        access = await world.open()
        client = client_of(world, access)
        assert [model.id async for model in client.models.list()] == ["tiny"]
        assert (await client.models.retrieve("claude-x")).id == "claude-x"
        assert (await world.client(access).models.list()).data[0].id == "tiny"
        async with world.http.head(f"{world.server.url}/s/{access.session_id}", headers=_headers(access)) as response:
            assert response.status == 200


async def test_bad_requests_are_named_and_nothing_is_recorded(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        with pytest.raises(anthropic.BadRequestError, match="end with a user message") as caught:
            await ask(client_of(world, access), USER, {"role": "assistant", "content": "The"})
        assert (caught.value.type, caught.value.error_code) == ("invalid_request_error", "unsupported_value")
        assert world.gateway.status(access.session_id).counters == {"requests_refused": 1}
        assert await world.settled(access) == ()


async def test_wrong_keys_and_dead_sessions(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        one, two = await world.open(), await world.open()
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await ask(client_of(world, one, api_key=two.key))
        assert (caught.value.type, caught.value.error_code) == ("authentication_error", "invalid_api_key")
        await world.settled(one)
        with pytest.raises(anthropic.APIStatusError) as gone:
            await ask(client_of(world, one, max_retries=2))
        assert (gone.value.status_code, gone.value.error_code) == (410, "session_closed")


async def test_limits_of_a_session_are_the_sdks_errors(tmp_path: Path) -> None:
    gate = Gate()
    script = in_turn(ScriptedAnswer(ids=odd_ids("hello"), gates={2: gate}), odd("fine"))
    async with proxy(tmp_path, script, max_concurrent_calls=1, max_calls_per_session=2) as world:
        access = await world.open()
        client = client_of(world, access)
        waiting = asyncio.create_task(ask(client))
        await gate.stood_before()
        with pytest.raises(anthropic.RateLimitError) as busy:
            await ask(client)
        gate.set()
        assert (await waiting).content[0].text == "hello"
        await ask(client)
        with pytest.raises(anthropic.PermissionDeniedError) as over:
            await ask(client, max_tokens=5)
        assert (busy.value.type, over.value.type) == ("rate_limit_error", "permission_error")
        with pytest.raises(anthropic.NotFoundError):
            await client.post("/v1/nothing", cast_to=object)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_context_is_one_recorded_failure_in_words_that_harnesses_know(
    tmp_path: Path, stream: bool
) -> None:
    async with proxy(tmp_path, in_turn("x"), context_length=40) as world:
        access = await world.open()
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 40 maximum") as caught:
            await ask(client_of(world, access), {"role": "user", "content": "word " * 100}, stream=stream)
        assert caught.value.type == "invalid_request_error"
        (call,) = await world.settled(access)
        assert (call.completion, call.error) == (Completion.ERROR, "context_length_exceeded")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_fault_before_the_first_id_is_retried_by_the_sdk(tmp_path: Path, stream: bool) -> None:
    script = in_turn(ScriptedAnswer(text="x", abort_after=0), odd("second try"))
    async with proxy(tmp_path, script) as world:
        access = await world.open()
        answer = await (streamed if stream else ask)(client_of(world, access, max_retries=2))
        assert answer.content[0].text == "second try"
        failed, complete = await world.settled(access)
        assert failed.completion is Completion.ENGINE_ABORTED
        assert (complete.completion, complete.labels["x-stainless-retry-count"]) == (Completion.COMPLETE, "1")


@pytest.mark.parametrize(("fault", "status"), [("abort", 503), ("error", 503)])
async def test_an_engine_fault_is_the_sdks_server_error(tmp_path: Path, fault: str, status: int) -> None:
    failing = ScriptedAnswer(text="x", abort_after=0) if fault == "abort" else ScriptedAnswer(text="x", fail_after=0)
    async with proxy(tmp_path, in_turn(failing)) as world:
        with pytest.raises(anthropic.InternalServerError) as caught:
            await ask(client_of(world, await world.open()))
        assert (caught.value.status_code, caught.value.type) == (status, "overloaded_error")


async def test_an_abort_in_mid_stream_is_an_error_event(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(ScriptedAnswer(ids=odd_ids("hello there"), abort_after=5))) as world:
        access = await world.open()
        got: list[str] = []

        async def read(stream: Any) -> None:
            async for event in stream:
                if event.type == "content_block_delta":
                    got.append(event.delta.text)

        stream = await ask(client_of(world, access), stream=True)
        with pytest.raises(anthropic.APIStatusError, match="dropped the call") as caught:
            await read(stream)
        assert ("".join(got), caught.value.type) == ("hello", "overloaded_error")
        (call,) = await world.settled(access)
        assert call.delivered == Delivered(state="prefix", count=5)


async def test_a_cut_answer_that_comes_back_is_its_ids(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(ScriptedAnswer(ids=odd_ids("hello there"), abort_after=5), odd("go"))) as world:
        access = await world.open()
        client = client_of(world, access)
        stream = await ask(client, stream=True)
        with pytest.raises(anthropic.APIStatusError):
            [event async for event in stream]
        await ask(client, USER, {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}, USER)
        cut, call = await world.settled(access)
        assert call.counters.keys().isdisjoint({"reencoded_turns", "foreign_turns"})
        assert prompt_ids([cut, call])[call.call_id][len(cut.prompt) :][:5] == cut.sampled_ids


async def test_a_silent_engine_is_bridged_by_pings(tmp_path: Path) -> None:
    gate = Gate()
    answer = ScriptedAnswer(ids=odd_ids("hello"), gates={2: gate})
    async with proxy(tmp_path, in_turn(answer), keep_alive_s=0.02, headers_after_s=0.02) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}/v1/messages?beta=true"
        body = {"model": "m", "max_tokens": 9, "messages": [USER], "stream": True}
        async with world.http.post(url, json=body, headers=_headers(access)) as response:
            assert response.content_type == "text/event-stream"
            await gate.stood_before()
            await asyncio.sleep(0.1)
            gate.set()
            raw = await response.read()
        reader = read_stream(raw)
        assert raw.count(b"event: ping") >= 2
        assert reader.message is not None
        assert reader.message["content"] == [{"type": "text", "text": "hello"}]


async def test_a_changing_first_line_of_the_system_can_be_removed(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("x"), odd("y"))) as world:
        access = await world.open(strip_system_lines=["x-anthropic-billing-header:"])
        client = client_of(world, access)
        for number in range(2):
            nonce = {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"}
            await ask(client, system=[nonce, {"type": "text", "text": "Be brief."}])
        one, two = await world.settled(access)
        assert prompt_ids([one, two])[one.call_id] == prompt_ids([one, two])[two.call_id]
        assert (one.counters["stripped_lines"], two.counters["stripped_lines"]) == (1, 1)


def _headers(access: SessionAccess) -> Mapping[str, str]:
    return {"x-api-key": access.key, "anthropic-version": "2023-06-01"}
