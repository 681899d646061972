"""The official OpenAI SDK's Responses API against a real proxy: what it gets, and what the store holds by then."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

import pictures
from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.records import Completion, Delivered, Finish, RecordedCall, Role
from openforgerl.trajectories import prompt_ids
from proxy_world import Gate, call_text, in_turn, lawful, odd, odd_ids, proxy
from responses_stream import events_of, read_stream

USER = {"role": "user", "content": "hi"}
BASH = {"type": "function", "name": "bash", "description": "Run.", "parameters": {"type": "object"}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edit.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
CRM = {"type": "namespace", "name": "crm", "description": "CRM.", "tools": [{**BASH, "name": "read"}, PATCH]}
THINK = "<think>\nlet me see\n</think>\n\n"
PIXEL = pictures.data_url(pictures.PIXEL)


async def ask(client: AsyncOpenAI, *items: Any, **fields: Any) -> Any:
    return await client.responses.create(**{"model": "gpt-x", "input": list(items) or "hi", **fields})


async def streamed(client: AsyncOpenAI, *items: Any, **fields: Any) -> Any:
    """The response that the SDK makes of the stream."""
    async with client.responses.stream(**{"model": "gpt-x", "input": list(items) or "hi", **fields}) as stream:
        return await stream.get_final_response()


async def last_of(client: AsyncOpenAI, *items: Any, **fields: Any) -> Any:
    """The last event of a stream."""
    stream = await ask(client, *items, stream=True, **fields)
    return [event async for event in stream][-1]


def result(call: Any, given: Any = "ok") -> dict[str, Any]:
    return {"type": f"{call.type}_output", "call_id": call.call_id, "output": given}


def kept(response: Any) -> list[dict[str, Any]]:
    """The items as the SDK's user puts them into the history."""
    return [item.to_dict(exclude_unset=True) for item in response.output]


def said(response: Any) -> list[dict[str, Any]]:
    """The items without the ids, which differ from call to call, and without what the SDK's stream helper adds."""
    added = {"id", "call_id", "encrypted_content", "parsed_arguments"}
    items = [{key: value for key, value in item.items() if key not in added} for item in kept(response)]
    for item in items:
        for part in item.get("content", []):
            part.pop("parsed", None)
    return items


def grown(calls: Sequence[RecordedCall]) -> bool:
    """Each prompt begins with the prompt and the answer before it, and no turn was encoded anew."""
    prompts = prompt_ids(calls)
    anew = sum(call.counters.get(name, 0) for call in calls for name in ("reencoded_turns", "foreign_turns"))
    return not anew and all(
        prompts[later.call_id][: len(prompts[call.call_id]) + len(call.sampled_ids)]
        == prompts[call.call_id] + call.sampled_ids
        for call, later in itertools.pairwise(calls)
    )


async def test_a_plain_answer_is_recorded_with_its_ids(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello there"))) as world:
        access = await world.open()
        answer = await ask(world.client(access), instructions="Be brief.", metadata={"a": "b"})
        assert (answer.output_text, answer.status, answer.model) == ("hello there", "completed", "gpt-x")
        assert (answer.instructions, answer.metadata, answer.tools) == ("Be brief.", {"a": "b"}, [])
        (call,) = world.store.calls(access.session_id)
        assert (call.dialect, call.model_asked, call.finish) == ("responses", "gpt-x", Finish.STOP)
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(call.prompt), len(call.sampled_ids))
        assert (answer.id, answer.usage.total_tokens) == (
            f"resp_{call.call_id}",
            len(call.prompt) + len(call.sampled_ids),
        )
        lawful(await world.settled(access))
        assert world.store.calls(access.session_id)[0].delivered == Delivered(state="full")


@pytest.mark.parametrize("summary", [None, "auto"])
async def test_a_streamed_answer_is_the_plain_one(tmp_path: Path, summary: str | None) -> None:
    calls = [call_text('{"b": 1.0}'), call_text('{"input": "a\\nb"}', "patch"), call_text("{}", "crm__read")]
    async with proxy(tmp_path, in_turn(odd(THINK + "I look. " + "\n".join(calls)))) as world:
        client = world.client(await world.open())
        fields = {"tools": [BASH, PATCH, CRM], "reasoning": {"summary": summary}}
        plain, stream = await ask(client, **fields), await streamed(client, **fields)
        assert said(plain) == said(stream)
        assert [item.type for item in plain.output] == [
            "reasoning", "message", "function_call", "custom_tool_call", "function_call",
        ]  # fmt: skip
        thought = plain.output[0].summary if summary else plain.output[0].content
        assert thought[0].text == "let me see"
        assert (plain.output[2].arguments, plain.output[3].input) == ('{"b": 1.0}', "a\nb")
        assert (plain.output[4].namespace, plain.output[4].name) == ("crm", "read")
        assert stream.usage == plain.usage


async def test_the_events_that_the_sdk_reads_are_those_of_the_format(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(THINK + "Hm. " + call_text()))) as world:
        stream = await ask(world.client(await world.open()), tools=[BASH], stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert all(type(event).__name__ != "BaseModel" for event in events)
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hm. "
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert done == events[-1].response.output
        assert [type(item).__name__ for item in done] == [
            "ResponseReasoningItem", "ResponseOutputMessage", "ResponseFunctionToolCall",
        ]  # fmt: skip


async def test_parallel_calls_come_back_as_ids(tmp_path: Path) -> None:
    text = THINK + "Two. " + call_text('{"b":1.0,  "a": "x"}') + "\n" + call_text("{}")
    async with proxy(tmp_path, in_turn(odd(text), odd("done"))) as world:
        access = await world.open()
        client = world.client(access)
        first = await streamed(client, USER, tools=[BASH])
        calls = [item for item in first.output if item.type == "function_call"]
        assert len({call.call_id for call in calls}) == 2
        assert all(call.call_id.isalnum() for call in calls)
        await streamed(client, USER, *kept(first), *map(result, calls), tools=[BASH])
        recorded = await world.settled(access)
        assert grown(recorded)
        assert len(lawful(recorded)) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_of_the_sdks_own_objects_grows_without_new_encoding(tmp_path: Path, stream: bool) -> None:
    answers = [
        odd(THINK + call_text()),
        odd(THINK + "Again. " + call_text('{"input": "*** \\u00fc\\n"}', "patch")),
        odd(call_text('{"patch": "wrong"}', "patch")),
        odd("So: " + call_text('{"n": 2.50}', "crm__read")),
        odd("done"),
    ]
    async with proxy(tmp_path, in_turn(*answers)) as world:
        access = await world.open()
        client = world.client(access)
        items: list[Any] = [USER]
        for _ in range(5):
            answer = await (streamed if stream else ask)(client, *items, tools=[BASH, PATCH, CRM], instructions="I.")
            calls = [item for item in answer.output if item.type.endswith("_call")]
            items += [*answer.output, *map(result, calls)]
        recorded = await world.settled(access)
        assert [call.finish for call in recorded] == [Finish.TOOL_CALLS] * 4 + [Finish.STOP]
        assert grown(recorded)
        assert len(lawful(recorded)) == 1


async def test_encrypted_reasoning_names_the_call_that_it_comes_from(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(THINK + call_text()), odd("done"))) as world:
        access = await world.open()
        client = world.client(access)
        first = await ask(client, USER, tools=[BASH], store=False, include=["reasoning.encrypted_content"])
        reasoning, call = kept(first)
        emptied = [
            {**reasoning, "content": None},
            {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]},
        ]
        for item in (reasoning, *emptied):
            await ask(client, USER, item, call, result(first.output[1]), tools=[BASH])
        one, *others = await world.settled(access)
        prompts, seen = prompt_ids([one, *others]), len(one.prompt) + len(one.sampled_ids)
        assert len(others) == 3
        assert all(prompts[call.call_id][:seen] == prompts[one.call_id] + one.sampled_ids for call in others)
        assert not any(call.counters.get("reencoded_turns") for call in others)


async def test_items_as_codex_keeps_them_are_the_answers_ids(tmp_path: Path) -> None:
    """It writes the members in its own order, empties what it does not use, and gives its own items ids."""
    texts = [THINK + "I look. " + call_text('{"cmd":  "ls"}'), call_text('{"input": "*** a\\n"}', "patch"), "done"]
    async with proxy(tmp_path, in_turn(*map(odd, texts))) as world:
        access = await world.open()
        client = world.client(access)
        fields: dict[str, Any] = {"tools": [BASH, PATCH, {"type": "web_search"}], "reasoning": {"summary": "auto"}}
        items: list[Any] = [{"type": "message", "id": "msg_x", **USER}]
        for number in range(3):
            response = await last_of(client, *items, **fields, store=False, prompt_cache_key=f"k{number}")
            for item in response.response.output:
                sent = {key: value for key, value in reversed(item.to_dict().items()) if key != "status"}
                items.append({**sent, "content": None} if item.type == "reasoning" else sent)
                if item.type.endswith("_call"):
                    items.append({"id": f"out_{number}", **result(item, [{"type": "input_text", "text": "ok"}])})
        recorded = await world.settled(access)
        assert len(recorded) == 3
        assert grown(recorded)


@pytest.mark.parametrize(
    ("tool", "arguments", "output"),
    [
        ({"type": "local_shell"}, '{"command": ["ls"], "timeout_ms": 5}', "a.txt"),
        (
            {"type": "shell"},
            '{"commands": ["ls"]}',
            [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        ),
        ({"type": "apply_patch"}, '{"type": "delete_file", "path": "a"}', "done"),
    ],
)
async def test_client_side_tools_grow_a_conversation_too(
    tmp_path: Path, tool: dict[str, Any], arguments: str, output: Any
) -> None:
    async with proxy(tmp_path, in_turn(odd(call_text(arguments, tool["type"])), odd("done"))) as world:
        access = await world.open()
        client = world.client(access)
        first = await streamed(client, USER, tools=[tool])
        assert first.output[0].type == f"{tool['type']}_call"
        await ask(client, USER, *kept(first), {**result(first.output[0], output), "status": "completed"}, tools=[tool])
        assert grown(await world.settled(access))


async def test_a_conversation_grows_while_tools_are_found(tmp_path: Path) -> None:
    search = {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}
    found = {"type": "namespace", "name": "crm", "description": "CRM.", "tools": [{**BASH, "name": "task"}]}
    script = in_turn(odd(call_text('{"query": "x"}', "tool_search")), odd(call_text("{}", "crm__task")), odd("done"))
    async with proxy(tmp_path, script) as world:
        access = await world.open()
        client = world.client(access)
        first = await ask(client, USER, tools=[search, BASH])
        assert (first.output[0].type, first.output[0].arguments) == ("tool_search_call", {"query": "x"})
        told = {
            "type": "tool_search_output",
            "call_id": first.output[0].call_id,
            "execution": "client",
            "tools": [found],
        }
        items = [USER, *kept(first), told]
        second = await ask(client, *items, tools=[search, BASH])
        assert (second.output[0].namespace, second.output[0].name) == ("crm", "task")
        await ask(client, *items, *kept(second), result(second.output[0]), tools=[search, BASH])
        assert grown(await world.settled(access))


async def test_an_answer_that_was_cut_is_incomplete(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("one two three"))) as world:
        access = await world.open()
        client = world.client(access)
        cut = await ask(client, max_output_tokens=3)
        assert (cut.status, cut.incomplete_details.reason, cut.output_text) == (
            "incomplete",
            "max_output_tokens",
            "one",
        )
        assert cut.output[0].status == "incomplete"
        event = await last_of(client, max_output_tokens=4)
        assert (event.type, event.response.incomplete_details.reason) == ("response.incomplete", "max_output_tokens")
        assert [call.finish for call in await world.settled(access)] == [Finish.LENGTH, Finish.LENGTH]


async def test_results_keep_their_order_and_their_parts(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(call_text() + "\n" + call_text("{}")), odd("done"))) as world:
        access = await world.open()
        client = world.client(access)
        first = await ask(client, USER, tools=[BASH])
        one, two = first.output
        parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
        developer = {"role": "developer", "content": "go on"}
        await ask(client, USER, *kept(first), result(two, parts), result(one), developer, tools=[BASH])
        _, call = await world.settled(access)
        assert [(message.role, message.text, message.tool_call_id) for message in call.messages.new[-3:]] == [
            (Role.TOOL, "a\nb", two.call_id), (Role.TOOL, "ok", one.call_id), (Role.DEVELOPER, "go on", ""),
        ]  # fmt: skip


@pytest.mark.parametrize("url", [PIXEL, "http://127.0.0.1/a.png"])
async def test_a_model_without_eyes_refuses_images(tmp_path: Path, url: str) -> None:
    image = {"type": "input_image", "image_url": url, "detail": "auto"}
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        with pytest.raises(openai.BadRequestError, match="image"):
            await ask(world.client(access), {"role": "user", "content": [image]})
        assert await world.settled(access) == ()


async def test_tokens_are_counted_without_a_call(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()
        client = world.client(access)
        sent: Any = {"model": "gpt-x", "instructions": "s", "input": [USER], "tools": [BASH]}
        counts = await asyncio.gather(*[client.responses.input_tokens.count(**sent) for _ in range(5)])
        answer = await client.responses.create(**sent)
        assert {(count.object, count.input_tokens) for count in counts} == {
            ("response.input_tokens", answer.usage.input_tokens)
        }
        assert len(await world.settled(access)) == 1


async def test_a_wished_schema_reaches_the_call(tmp_path: Path) -> None:
    class Found(BaseModel):
        place: str

    async with proxy(tmp_path, in_turn(odd('{"place": "here"}'))) as world:
        access = await world.open()
        answer = await world.client(access).responses.parse(model="m", input="where?", text_format=Found)
        assert answer.output_parsed == Found(place="here")
        assert json.loads(world.engine.requests[0].output_schema)["required"] == ["place"]


async def test_the_blocking_sdk_works_as_well(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()

        def talk() -> str:
            url = f"{world.server.url}/s/{access.session_id}/v1"
            with OpenAI(base_url=url, api_key=access.key) as client:
                return client.responses.create(model="", input="hi").output_text

        assert await asyncio.to_thread(talk) == "hello"


async def test_models_are_listed_beside_it(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), model_name="tiny") as world:
        client = world.client(await world.open())
        assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_bad_requests_are_named_and_nothing_is_recorded(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        client = world.client(access)
        with pytest.raises(openai.BadRequestError, match="send the whole conversation") as caught:
            await ask(client, previous_response_id="resp_1")
        assert (caught.value.type, caught.value.param) == ("invalid_request_error", "previous_response_id")
        assert caught.value.code == "unsupported_parameter"
        with pytest.raises(openai.NotFoundError, match="keeps no responses"):
            await client.responses.retrieve("resp_1")
        with pytest.raises(openai.NotFoundError, match="ask for a summary"):
            await client.responses.compact(model="m", input="hi")
        assert world.gateway.status(access.session_id).counters == {"requests_refused": 3}
        assert await world.settled(access) == ()


async def test_wrong_keys_and_dead_sessions(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        one, two = await world.open(), await world.open()
        with pytest.raises(openai.AuthenticationError) as caught:
            await ask(world.client(one, api_key=two.key))
        assert (caught.value.type, caught.value.code) == ("authentication_error", "invalid_api_key")
        await world.settled(one)
        with pytest.raises(openai.APIStatusError) as gone:
            await ask(world.client(one, max_retries=2))
        assert (gone.value.status_code, gone.value.code) == (410, "session_closed")


async def test_limits_of_a_session_are_the_sdks_errors(tmp_path: Path) -> None:
    gate = Gate()
    script = in_turn(ScriptedAnswer(ids=odd_ids("hello"), gates={2: gate}), odd("fine"))
    async with proxy(tmp_path, script, max_concurrent_calls=1, max_calls_per_session=2) as world:
        client = world.client(await world.open())
        waiting = asyncio.create_task(ask(client))
        await gate.stood_before()
        with pytest.raises(openai.RateLimitError):
            await ask(client)
        gate.set()
        assert (await waiting).output_text == "hello"
        await ask(client)
        with pytest.raises(openai.PermissionDeniedError):
            await ask(client, max_output_tokens=5)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_context_is_one_recorded_failure_in_words_that_harnesses_know(
    tmp_path: Path, stream: bool
) -> None:
    async with proxy(tmp_path, in_turn("x"), context_length=40) as world:
        access = await world.open()
        with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
            await ask(world.client(access), {"role": "user", "content": "word " * 100}, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        (call,) = await world.settled(access)
        assert (call.completion, call.error) == (Completion.ERROR, "context_length_exceeded")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_fault_before_the_first_id_is_retried_by_the_sdk(tmp_path: Path, stream: bool) -> None:
    script = in_turn(ScriptedAnswer(text="x", abort_after=0), odd("second try"))
    async with proxy(tmp_path, script) as world:
        access = await world.open()
        answer = await (streamed if stream else ask)(world.client(access, max_retries=2))
        assert answer.output_text == "second try"
        failed, complete = await world.settled(access)
        assert failed.completion is Completion.ENGINE_ABORTED
        assert (complete.completion, complete.labels["x-stainless-retry-count"]) == (Completion.COMPLETE, "1")


@pytest.mark.parametrize("fault", [{"abort_after": 0}, {"fail_after": 0}])
async def test_an_engine_fault_is_the_sdks_server_error(tmp_path: Path, fault: dict[str, int]) -> None:
    async with proxy(tmp_path, in_turn(ScriptedAnswer(text="x", **fault))) as world:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(world.client(await world.open()))
        assert (caught.value.status_code, caught.value.type) == (503, "server_error")


async def test_an_abort_in_mid_stream_is_a_failed_response(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(ScriptedAnswer(ids=odd_ids("hello there"), abort_after=5))) as world:
        access = await world.open()
        client = world.client(access)
        event = await last_of(client)
        assert (event.type, event.response.status) == ("response.failed", "failed")
        assert (event.response.error.code, event.response.output) == ("server_error", [])
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await streamed(client)
        call, _ = await world.settled(access)
        assert call.delivered == Delivered(state="prefix", count=5)


@pytest.mark.parametrize("kept_text", ["hello", ""])
async def test_a_cut_answer_that_comes_back_is_its_ids(tmp_path: Path, kept_text: str) -> None:
    """Codex keeps the finished reasoning of an answer that was cut, and nothing of the item that was not."""
    thought = odd_ids(THINK, ends_turn=False)
    cut_there = ScriptedAnswer(ids=odd_ids(THINK + "hello there"), abort_after=len(thought) + 5)
    async with proxy(tmp_path, in_turn(cut_there, odd("go"))) as world:
        access = await world.open()
        client = world.client(access)
        event = await last_of(client, USER)
        (reasoning,) = event.response.output
        text = {"role": "assistant", "content": [{"type": "output_text", "text": kept_text}]}
        await ask(client, USER, reasoning.to_dict(), *([text] if kept_text else []))
        cut, call = await world.settled(access)
        assert call.counters.keys().isdisjoint({"reencoded_turns", "foreign_turns"})
        assert call.messages.new[0].reasoning_mark == cut.call_id
        seen = thought + odd_ids(kept_text, ends_turn=False)
        prompts = prompt_ids([cut, call])
        assert prompts[call.call_id][: len(cut.prompt) + len(seen)] == prompts[cut.call_id] + seen


async def test_a_silent_engine_is_bridged_by_events(tmp_path: Path) -> None:
    gate = Gate()
    answer = ScriptedAnswer(ids=odd_ids("hello"), gates={2: gate})
    async with proxy(tmp_path, in_turn(answer), keep_alive_s=0.02, headers_after_s=0.02) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}/v1/responses"
        body = {"model": "m", "input": "hi", "stream": True}
        headers = {"Authorization": f"Bearer {access.key}"}
        async with world.http.post(url, json=body, headers=headers) as response:
            assert response.content_type == "text/event-stream"
            await gate.stood_before()
            await asyncio.sleep(0.1)
            gate.set()
            raw = await response.read()
        final = read_stream(raw).response
        assert [event["type"] for event in events_of(raw)].count("response.in_progress") >= 3
        assert final is not None
        assert final["output"][0]["content"][0]["text"] == "hello"


async def test_a_client_that_leaves_at_the_terminal_event_has_the_whole_answer(tmp_path: Path) -> None:
    """As Codex does: it closes its socket when it has read the terminal event, before the stream's end."""
    async with proxy(tmp_path, in_turn(odd(call_text()), odd("done"))) as world:
        access = await world.open()
        body = json.dumps({"model": "m", "input": "hi", "stream": True, "tools": [BASH]}).encode()
        host, port = world.server.address
        head = (
            f"POST /s/{access.session_id}/v1/responses HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {access.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(head.encode() + body)
        raw = await asyncio.wait_for(reader.readuntil(b"event: response.completed\n"), 10)
        raw += await asyncio.wait_for(reader.readuntil(b"\n\n"), 10)
        writer.transport.abort()
        (done,) = [line for line in raw.split(b"\n") if line.startswith(b'data: {"type":"response.completed"')]
        items = json.loads(done.removeprefix(b"data: "))["response"]["output"]
        output = {"type": "function_call_output", "call_id": items[0]["call_id"], "output": "ok"}
        await ask(world.client(access), {"role": "user", "content": "hi"}, *items, output, tools=[BASH])
        first, second = await world.settled(access)
        assert (first.completion, first.delivered) == (Completion.COMPLETE, Delivered(state="full"))
        assert grown([first, second])
