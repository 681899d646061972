"""The official Google SDK against a real proxy: what it gets, and what the store holds by then."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from gemini_stream import read_stream
from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.errors import EngineError
from openforgerl.proxy.access import SessionAccess
from openforgerl.records import Completion, Finish, RecordedCall
from openforgerl.trajectories import prompt_ids
from pictures import PIXEL
from proxy_world import Gate, World, call_text, codec, in_turn, lawful, odd, odd_ids, proxy

THINK = "<think>\nlet me see\n</think>\n\n"
TWO = "Two. " + call_text('{"command": "ls",  "n": 1.0}') + "\n" + call_text('{"command": "pwd"}')
BASH = types.Tool(
    function_declarations=[types.FunctionDeclaration(name="bash", parameters=types.Schema(type=types.Type.OBJECT))]
)
BY_HAND = types.AutomaticFunctionCallingConfig(disable=True)
THOUGHTS = types.ThinkingConfig(include_thoughts=True)


def user(text: str = "hi") -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def config(**fields: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(**{"tools": [BASH], "automatic_function_calling": BY_HAND, **fields})


def client_of(world: World, access: SessionAccess, **fields: Any) -> Any:
    url = f"{world.server.url}/s/{access.session_id}"
    options = types.HttpOptions(base_url=url, timeout=20_000, retry_options=types.HttpRetryOptions(attempts=1))
    client = genai.Client(**{"api_key": access.key, "vertexai": False, "http_options": options, **fields})
    world.stack.push_async_callback(client.aio.aclose)
    return client.aio.models


async def ask(models: Any, *contents: types.Content, **fields: Any) -> types.GenerateContentResponse:
    sent = list(contents) or [user()]
    answer: types.GenerateContentResponse = await models.generate_content(
        model="gemini-x", contents=sent, config=config(**fields)
    )
    return answer


async def streamed(models: Any, *contents: types.Content, **fields: Any) -> list[types.GenerateContentResponse]:
    sent = list(contents) or [user()]
    stream = await models.generate_content_stream(model="gemini-x", contents=sent, config=config(**fields))
    return [response async for response in stream]


def parts(*responses: types.GenerateContentResponse) -> list[types.Part]:
    return [part for response in responses for part in response.candidates[0].content.parts]  # type: ignore[index, union-attr]


def kept(*responses: types.GenerateContentResponse) -> types.Content:
    """The answer as the SDK's user puts it into the history: thoughts are left out, signatures stay."""
    return types.Content(role="model", parts=[part for part in parts(*responses) if not part.thought])


def results(found: Sequence[types.Part], output: str = "ok") -> types.Content:
    answers = []
    for part in found:
        if call := part.function_call:
            answer = types.FunctionResponse(id=call.id, name=call.name, response={"output": output})
            answers.append(types.Part(function_response=answer))
    return types.Content(role="user", parts=answers)


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
        answer = await ask(client_of(world, access))
        (call,) = await world.settled(access)
        assert (answer.text, answer.model_version, answer.response_id) == ("hello there", "gemini-x", call.call_id)
        assert answer.candidates[0].finish_reason is types.FinishReason.STOP  # type: ignore[index]
        usage = answer.usage_metadata
        assert usage is not None
        assert (usage.prompt_token_count, usage.candidates_token_count) == (len(call.prompt), len(call.sampled_ids))
        assert (call.dialect, call.model_asked, call.finish) == ("gemini", "gemini-x", Finish.STOP)
        lawful([call])


async def test_a_streamed_answer_is_the_plain_one(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(THINK + TWO))) as world:
        models = client_of(world, await world.open())
        plain = await ask(models, thinking_config=THOUGHTS)
        responses = await streamed(models, thinking_config=THOUGHTS)
        said = ["".join(part.text or "" for part in parts(*found) if part.thought) for found in ([plain], responses)]
        assert said == ["let me see"] * 2
        texts = [
            "".join(part.text or "" for part in parts(*found) if not part.thought) for found in ([plain], responses)
        ]
        assert texts == ["Two. "] * 2
        for found in ([plain], responses):
            calls = [part.function_call for part in parts(*found) if part.function_call]
            assert [(call.name, call.args) for call in calls] == [
                ("bash", {"command": "ls", "n": 1.0}),
                ("bash", {"command": "pwd"}),
            ]
            assert sum(part.thought_signature is not None for part in parts(*found)) == 1
        usage = plain.usage_metadata
        assert responses[-1].usage_metadata == usage
        assert usage is not None
        assert usage.thoughts_token_count == len(odd_ids(THINK, ends_turn=False))
        assert usage.candidates_token_count == len(odd_ids(TWO))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("thoughts", [True, False])
async def test_a_conversation_that_drops_its_thoughts_grows_without_new_encoding(
    tmp_path: Path, stream: bool, thoughts: bool
) -> None:
    async with proxy(tmp_path, in_turn(odd(THINK + TWO), odd(THINK + call_text('{"n": 2.50}')), odd("done"))) as world:
        access = await world.open()
        models = client_of(world, access)
        history = [user()]
        for _ in range(3):
            wish = {"thinking_config": THOUGHTS} if thoughts else {}
            found = await (streamed(models, *history, **wish) if stream else ask(models, *history, **wish))
            answer = found if isinstance(found, list) else [found]
            history += [kept(*answer), results(parts(*answer))]
        recorded = await world.settled(access)
        assert [call.finish for call in recorded] == [Finish.TOOL_CALLS, Finish.TOOL_CALLS, Finish.STOP]
        assert grown(recorded)
        assert len(lawful(recorded)) == 1


async def test_calls_without_ids_and_numbers_as_javascript_prints_them_are_still_ours(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(THINK + TWO), odd("done"))) as world:
        access = await world.open()
        models = client_of(world, access)
        turn = kept(await ask(models))
        for part in turn.parts or ():
            if part.function_call:
                part.function_call.id = None
                part.function_call.args = {
                    name: 1 if value == 1.0 else value
                    for name, value in reversed((part.function_call.args or {}).items())
                }
        await ask(models, user(), turn, results(turn.parts or []))
        recorded = await world.settled(access)
        assert grown(recorded)
        assert len(lawful(recorded)) == 1


async def test_a_conversation_as_gemini_cli_keeps_it_grows_without_new_encoding(tmp_path: Path) -> None:
    """It drops thoughts, joins texts, prints numbers again, and signs the first call with a word of its own."""
    numbers = call_text('{"big": 12345678901234567890, "command": "ls", "n": 1.0, "k": 1e3}')
    script = in_turn(
        odd(THINK + "I look.\n" + numbers + call_text()), odd(call_text() + call_text()), odd("  Done.\n\n")
    )
    async with proxy(tmp_path, script) as world:
        access = await world.open()
        models = client_of(world, access)
        history = [user()]
        for _ in range(3):
            answer = await streamed(models, *history, thinking_config=THOUGHTS)
            history += [as_gemini_cli_keeps(answer), results(parts(*answer))]
        recorded = await world.settled(access)
        assert grown(recorded)
        assert len(lawful(recorded)) == 1


def as_gemini_cli_keeps(answer: Sequence[types.GenerateContentResponse]) -> types.Content:
    said = [part for part in parts(*answer) if not part.thought]
    text = "".join(part.text or "" for part in said).strip()
    signatures = [part.thought_signature for part in said if part.text and part.thought_signature]
    turn = [types.Part(text=text, thought_signature=next(iter(signatures), None))] if text else []
    for place, part in enumerate(part for part in said if part.function_call):
        call = part.function_call
        assert call is not None
        printed = {"big": 12345678901234567000, "n": 1, "k": 1000}
        call.args = {name: printed.get(name, value) for name, value in (call.args or {}).items()}
        signature = part.thought_signature or (b"skip_thought_signature_validator" if place == 0 else None)
        turn.append(types.Part(function_call=call, thought_signature=signature))
    return types.Content(role="model", parts=turn)


async def test_results_keep_their_order_and_tell_failures(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(TWO), odd("done"))) as world:
        access = await world.open()
        models = client_of(world, access)
        answer = await ask(models)
        first, second = [part.function_call for part in parts(answer) if part.function_call]
        said = [
            types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response=response))
            for call, response in ((second, {"error": "no such folder"}), (first, {"output": "a b"}))
        ]
        await ask(models, user(), kept(answer), types.Content(role="user", parts=said))
        recorded = await world.settled(access)
        assert grown(recorded)
        prompt = codec().decode(prompt_ids(recorded)[recorded[1].call_id])
        assert 0 < prompt.find("no such folder") < prompt.find("a b")


async def test_an_answer_by_a_schema_is_recorded_as_asked_for(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd('{"a": 1}'))) as world:
        access = await world.open()
        models = client_of(world, access)
        shape = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}
        answer = await ask(models, response_mime_type="application/json", response_schema=shape)
        assert answer.parsed == {"a": 1}
        (call,) = await world.settled(access)
        assert json.loads(call.output_schema) == {"type": "object", "properties": {"a": {"type": "integer"}}}


async def test_the_blocking_client_works_as_well(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello there"))) as world:
        access = await world.open()
        options = types.HttpOptions(base_url=f"{world.server.url}/s/{access.session_id}", timeout=20_000)
        with genai.Client(api_key=access.key, vertexai=False, http_options=options) as client:
            plain = await asyncio.to_thread(client.models.generate_content, model="m", contents="hi")
            stream = await asyncio.to_thread(
                lambda: list(client.models.generate_content_stream(model="m", contents="hi"))
            )
        assert (plain.text, "".join(response.text or "" for response in stream)) == ("hello there", "hello there")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_sdks_own_chat_goes_on(tmp_path: Path, stream: bool) -> None:
    async with proxy(tmp_path, in_turn(odd("one two"), odd("three"))) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}"
        client = genai.Client(api_key=access.key, vertexai=False, http_options=types.HttpOptions(base_url=url))
        world.stack.push_async_callback(client.aio.aclose)
        chat = client.aio.chats.create(model="gemini-x")
        for said in ("hi", "again"):
            if stream:
                async for _ in await chat.send_message_stream(said):
                    pass
            else:
                await chat.send_message(said)
        recorded = await world.settled(access)
        assert len(recorded) == 2
        assert grown(recorded)


async def test_counting_samples_nothing(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()
        models = client_of(world, access)
        counted = await models.count_tokens(model="gemini-x", contents=[user()])
        assert world.store.calls(access.session_id) == ()
        answer = await models.generate_content(model="gemini-x", contents=[user()])
        assert counted.total_tokens == answer.usage_metadata.prompt_token_count


async def test_length_and_stop_strings_end_an_answer(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("one two three"))) as world:
        models = client_of(world, await world.open())
        cut = await ask(models, max_output_tokens=3)
        assert cut.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS  # type: ignore[index]
        stopped = await ask(models, stop_sequences=["two"])
        assert stopped.text == "one "
        assert stopped.candidates[0].finish_reason is types.FinishReason.STOP  # type: ignore[index]


async def test_an_image_is_refused_by_a_model_that_reads_text_only(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("x"))) as world:
        models = client_of(world, await world.open())
        picture = types.Part.from_bytes(data=PIXEL, mime_type="image/png")
        with pytest.raises(errors.ClientError) as caught:
            await ask(models, types.Content(role="user", parts=[picture]))
        assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
        assert "image" in str(caught.value)


async def test_a_wrong_key_and_a_wrong_field_are_client_errors(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("x"))) as world:
        access = await world.open()
        with pytest.raises(errors.ClientError) as caught:
            await ask(client_of(world, access, api_key="wrong"))
        assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")
        with pytest.raises(errors.ClientError, match="one request for each answer") as caught:
            await ask(client_of(world, access), candidate_count=2)
        assert caught.value.code == 400


async def test_what_is_over_or_too_much_or_unknown_is_the_sdks_client_error(tmp_path: Path) -> None:
    gate = Gate()
    script = in_turn(ScriptedAnswer(ids=odd_ids("hello"), gates={2: gate}), odd("fine"))
    async with proxy(tmp_path, script, max_concurrent_calls=1, max_calls_per_session=2) as world:
        access = await world.open()
        models = client_of(world, access)
        waiting = asyncio.create_task(ask(models))
        await gate.stood_before()
        busy = await refused(ask(models))
        gate.set()
        assert (await waiting).text == "hello"
        await ask(models)
        over = await refused(ask(models))
        unknown = await refused(models.embed_content(model="m", contents="x"))
        await world.settled(access)
        dead = await refused(ask(models))
        assert [(error.code, error.status) for error in (busy, over, unknown)] == [
            (429, "RESOURCE_EXHAUSTED"),
            (403, "PERMISSION_DENIED"),
            (404, "NOT_FOUND"),
        ]
        assert dead.code == 410


async def refused(asking: Awaitable[object]) -> errors.ClientError:
    with pytest.raises(errors.ClientError) as caught:
        await asking
    return caught.value


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("status", "word"), [(500, "INTERNAL"), (503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED")])
async def test_an_engine_that_fails_is_the_sdks_server_error(
    tmp_path: Path, status: int, word: str, stream: bool
) -> None:
    error = EngineError("it broke")
    error.http_status = status
    async with proxy(tmp_path, in_turn(ScriptedAnswer(text="x", fail_after=0, error=error))) as world:
        models = client_of(world, await world.open())
        with pytest.raises(errors.ServerError) as caught:
            await (streamed(models) if stream else ask(models))
        assert (caught.value.code, caught.value.status) == (status, word)


async def test_a_cut_answer_that_comes_back_is_its_ids(tmp_path: Path) -> None:
    cut_short = ScriptedAnswer(ids=odd_ids("hello there"), chunk_sizes=(5,), abort_after=5)
    async with proxy(tmp_path, in_turn(cut_short, odd("go"))) as world:
        access = await world.open()
        models = client_of(world, access)
        with pytest.raises(errors.ServerError):
            await streamed(models)
        await ask(models, user(), types.Content(role="model", parts=[types.Part(text="hello")]), user())
        cut, call = await world.settled(access)
        assert call.counters.keys().isdisjoint({"reencoded_turns", "foreign_turns"})
        assert prompt_ids([cut, call])[call.call_id][len(cut.prompt) :][:5] == cut.sampled_ids


async def test_a_full_context_is_said_before_anything_is_sampled(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("x")), context_length=64) as world:
        with pytest.raises(errors.ClientError, match=r"input token count \(\d+\) exceeds the maximum") as caught:
            await ask(client_of(world, await world.open()), user("long " * 200))
        assert caught.value.code == 400


@pytest.mark.parametrize("sse", [True, False])
async def test_an_engine_that_gives_up_in_mid_answer_is_an_error_and_no_end(tmp_path: Path, sse: bool) -> None:
    broken = ScriptedAnswer(ids=odd_ids("one two three"), chunk_sizes=(3,), abort_after=6)
    async with proxy(tmp_path, in_turn(broken)) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}/v1beta/models/m:streamGenerateContent" + (
            "?alt=sse" if sse else ""
        )
        body = json.dumps({"contents": [{"parts": [{"text": "hi"}]}]})
        async with world.http.post(url, data=body, headers={"x-goog-api-key": access.key}) as response:
            reader = read_stream(await response.read(), is_sse=sse)
        assert reader.error is not None
        assert reader.error["code"] >= 500
        (call,) = await world.settled(access)
        assert call.completion is Completion.ENGINE_ABORTED
        if sse:
            with pytest.raises(errors.ServerError):
                await streamed(client_of(world, await world.open()))


async def test_a_client_that_leaves_cancels_its_call(tmp_path: Path) -> None:
    gate = Gate()
    waiting = ScriptedAnswer(ids=odd_ids("one two three"), gates={6: gate})
    async with proxy(tmp_path, in_turn(waiting)) as world:
        access = await world.open()
        asking = asyncio.create_task(streamed(client_of(world, access)))
        await gate.stood_before()
        asking.cancel()
        (call,) = await world.recorded(access.session_id, 1)
        assert call.completion is Completion.CLIENT_ABORTED


async def test_models_are_listed(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("x"))) as world:
        models = client_of(world, await world.open())
        assert [model.name async for model in await models.list()] == ["models/policy"]
        assert (await models.get(model="gemini-x")).name == "models/gemini-x"


async def test_the_key_may_stand_in_the_query_and_is_told_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    async with proxy(tmp_path, in_turn(odd("x"))) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}/v1beta/models/m:generateContent?key={access.key}"
        async with world.http.post(url, json={"contents": [{"parts": [{"text": "hi"}]}]}) as response:
            assert response.status == 200
            said = await response.text()
        for wrong, body in ((url.replace("m:generate", "m:embed"), {}), (url, {"contents": 1}), (f"{url}x", {})):
            async with world.http.post(wrong, json=body) as response:
                assert response.status in (400, 401, 404)
                said += await response.text()
        (call,) = await world.settled(access)
        assert access.key not in repr(call) + said + caplog.text
