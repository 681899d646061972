"""The official Google SDK against a real proxy: what it gets, and what the store holds by then."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from gemini_stream import read_stream
from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.proxy.access import SessionAccess
from openforgerl.records import Completion, Finish, RecordedCall
from openforgerl.trajectories import prompt_ids
from pictures import PIXEL
from proxy_world import Gate, World, call_text, in_turn, lawful, odd, odd_ids, proxy

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


async def test_the_key_may_stand_in_the_query(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("x"))) as world:
        access = await world.open()
        url = f"{world.server.url}/s/{access.session_id}/v1beta/models/m:generateContent?key={access.key}"
        async with world.http.post(url, json={"contents": [{"parts": [{"text": "hi"}]}]}) as response:
            assert response.status == 200
        (call,) = await world.settled(access)
        assert access.key not in repr(call)
