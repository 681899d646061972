"""What real harnesses make of a conversation between two calls; each shape is replayed by a scripted client.

Every answer is sampled with ids that are not the tokenizer's own, so any re-encoding shows.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from openforgerl.records import CallKind, Completion, Delivered, MaskReason, RecordedCall, SpanKind
from openforgerl.trajectories import kinds, parents, prompt_ids
from proxy_world import (
    BASH,
    assistant,
    by_prompt,
    call_text,
    codec,
    in_turn,
    lawful,
    odd,
    odd_ids,
    proxy,
    spelled_as_sampled,
    tool_result,
)

SYSTEM = {"role": "system", "content": "You are an agent."}
TASK = {"role": "user", "content": "Count the files."}


async def ask(client: AsyncOpenAI, messages: list[Any], tools: Any = (BASH,), **options: Any) -> dict[str, Any]:
    """One plain call; the assistant message as the client keeps it."""
    if tools:
        options["tools"] = list(tools)
    return assistant(await client.chat.completions.create(model="m", messages=messages, **options))


def ids_of(message: dict[str, Any]) -> list[str]:
    return [call["id"] for call in message["tool_calls"]]


def through_javascript(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments parsed and printed again, without spaces; 1.0 becomes 1; ids lose what is no letter or digit."""
    calls = []
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"], parse_float=_javascript_number)
        function = {**call["function"], "arguments": json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)}
        calls.append({**call, "id": re.sub("[^A-Za-z0-9]", "", call["id"]), "function": function})
    return {**message, "tool_calls": calls}


def _javascript_number(literal: str) -> float | int:
    number = float(literal)
    return int(number) if number.is_integer() else number


def stands_in(ids: tuple[int, ...], prompt: tuple[int, ...]) -> bool:
    return any(prompt[start : start + len(ids)] == ids for start in range(len(prompt) - len(ids) + 1))


def reencoded(calls: tuple[RecordedCall, ...]) -> int:
    return sum(call.counters.get("reencoded_turns", 0) + call.counters.get("foreign_turns", 0) for call in calls)


async def test_openclaw_moves_its_last_message_at_every_call(tmp_path: Path) -> None:
    script = in_turn(odd(call_text('{"command": "ls", "n": 1.0}')), odd(call_text('{"command": "wc"}')), odd("Three."))
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="openclaw")
        client, history = world.client(access), [SYSTEM, TASK]
        for step in range(3):
            context = {"role": "user", "content": f"<internal-context turn={step}>cwd=/w</internal-context>"}
            answer = through_javascript(await ask(client, [*history, context]))
            history.append(answer)
            history += [tool_result(call_id, f"out {step}") for call_id in ids_of(answer)]
        calls = await world.settled(access)
        assert [spelled_as_sampled(calls, calls[2], calls[step]) for step in (0, 1)] == [True, True]
        assert spelled_as_sampled(calls, calls[1], calls[0])
        assert reencoded(calls) == 0
        made = lawful(calls)
        assert len(made) == 3
        assert [sum(row.loss_mask) for row in made] == [len(call.sampled_ids) for call in calls]
        assert set(kinds(calls).values()) == {CallKind.MAIN}


async def test_claude_code_puts_reminders_into_tool_results_and_a_nonce_into_the_system_prompt(tmp_path: Path) -> None:
    script = in_turn(odd(call_text()), odd(call_text('{"command": "wc"}')), odd("Three."))
    nonce = "x-anthropic-billing-header: cc_version=2.1; cch="
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="claude-code", strip_system_lines=("x-anthropic-billing-header:",))
        client, history = world.client(access), [TASK]
        for step in range(3):
            system = {"role": "system", "content": f"{nonce}{step}f\nYou are an agent."}
            answer = through_javascript(await ask(client, [system, *history]))
            history.append(answer)
            reminder = f"<system-reminder>todo list is empty ({step})</system-reminder>"
            parts = [{"type": "text", "text": "3 files"}, {"type": "text", "text": reminder}]
            history += [tool_result(call_id, parts) for call_id in ids_of(answer)]
        calls = await world.settled(access)
        assert len(lawful(calls)) == 1, "with the nonce gone every call extends the one before"
        assert [call.counters["stripped_lines"] for call in calls] == [1, 1, 1]
        assert reencoded(calls) == 0
        prompt = codec().decode(prompt_ids(calls)[calls[2].call_id])
        assert "cch=" not in prompt
        assert prompt.count("<system-reminder>") == 2


async def test_a_subagent_under_the_same_session_does_not_mix_with_the_main_agent(tmp_path: Path) -> None:
    main_answers = {"Count the files.": odd(call_text()), "main out": odd("M2")}
    script = by_prompt({**main_answers, "Search.": odd(call_text('{"q": 1}')), "sub out": odd("S2")})
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="claude-code")
        client = world.client(access)
        main: list[Any] = [SYSTEM, TASK]
        sub: list[Any] = [SYSTEM, {"role": "user", "content": "Search."}]
        main.append(await ask(client, main))
        sub.append(await ask(client, sub))
        main.append(tool_result(ids_of(main[-1])[0], "main out"))
        sub.append(tool_result(ids_of(sub[-1])[0], "sub out"))
        await asyncio.gather(ask(client, main), ask(client, sub))
        calls = await world.settled(access)
        assert len(lawful(calls)) == 2
        parent = parents(calls)
        by_text = {call.answer.text or call.answer.tool_calls[0].arguments: call.call_id for call in calls}
        assert parent[by_text["M2"]] == by_text['{"command": "ls"}']
        assert parent[by_text["S2"]] == by_text['{"q": 1}']
        assert reencoded(calls) == 0
        assert all(row.loss_mask.count(1) for row in lawful(calls))


async def test_a_cut_turn_that_the_harness_keeps_goes_on_from_its_recorded_ids(tmp_path: Path) -> None:
    gate = asyncio.Event()
    cut = odd("I will look at the files now.")
    script = in_turn(type(cut)(ids=cut.ids, gates={12: gate}), odd("Three."))
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="claude-code")
        client = world.client(access)
        kept = ""
        stream = await client.chat.completions.create(model="m", messages=[SYSTEM, TASK], stream=True)  # type: ignore[list-item]
        async for chunk in stream:
            kept += chunk.choices[0].delta.content or ""
            if len(kept) == 12:
                break
        await stream.close()
        (aborted,) = await world.recorded(access.session_id, 1)
        resume = {"role": "user", "content": "Your answer was cut; resume."}
        await ask(client, [SYSTEM, TASK, {"role": "assistant", "content": kept}, resume], tools=())
        calls = await world.settled(access)
        assert (aborted.completion, aborted.delivered) == (
            Completion.CLIENT_ABORTED,
            Delivered(state="prefix", count=12),
        )
        assert world.engine.cancelled == [aborted.call_id]
        assert stands_in(odd_ids("I will look ", ends_turn=False), prompt_ids(calls)[calls[1].call_id])
        assert reencoded(calls) == 0
        reasons = [reason for row in lawful(calls) for reason in row.mask_reasons]
        assert reasons.count(MaskReason.CLIENT_ABORTED) == 12


async def test_codex_summarises_without_tools_and_starts_a_new_context_from_it(tmp_path: Path) -> None:
    summary = "So far: three files."
    script = in_turn(odd(call_text()), odd(summary), odd(call_text('{"command": "wc"}')), odd("Done."))
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="codex")
        client = world.client(access)
        developer = {"role": "developer", "content": "Rules."}
        history: list[Any] = [developer, TASK]
        history.append(await ask(client, history))
        history.append(tool_result(ids_of(history[-1])[0], "a b c"))
        said = await ask(client, [*history, {"role": "user", "content": "Summarise for a handover."}], tools=())
        fresh: list[Any] = [developer, {"role": "user", "content": f"Handover: {said['content']}"}]
        fresh.append(await ask(client, fresh))
        fresh.append(tool_result(ids_of(fresh[-1])[0], "3"))
        await ask(client, fresh)
        calls = await world.settled(access)
        of = kinds(calls)
        assert [of[call.call_id] for call in calls] == [
            CallKind.MAIN, CallKind.SUMMARY, CallKind.MAIN, CallKind.MAIN,
        ]  # fmt: skip
        assert spelled_as_sampled(calls, calls[1], calls[0])
        assert reencoded(calls) == 0
        made = lawful(calls)
        assert sum(sum(row.loss_mask) for row in made) == sum(len(call.sampled_ids) for call in calls)


async def test_gemini_drops_thoughts_and_prints_numbers_again_in_another_order(tmp_path: Path) -> None:
    thought = "<think>\nI should list.\n</think>\n\n"
    script = in_turn(odd(thought + call_text('{"depth": 1.0, "command": "ls"}')), odd("Three."))
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="gemini")
        client = world.client(access)
        answer = await ask(client, [SYSTEM, TASK])
        call = answer["tool_calls"][0]
        assert call["function"]["arguments"] == '{"depth": 1.0, "command": "ls"}'
        call["function"]["arguments"] = '{"command":"ls","depth":1}'
        await ask(client, [SYSTEM, TASK, answer, tool_result(call["id"], "a b c")])
        calls = await world.settled(access)
        (span,) = [span for span in calls[0].spans if span.kind is SpanKind.TOOL_CALL]
        prompt = prompt_ids(calls)[calls[1].call_id]
        assert stands_in(calls[0].sampled_ids[span.start : span.stop], prompt)
        assert "I should list" not in codec().decode(prompt)
        assert reencoded(calls) == 0
        lawful(calls)


async def test_a_title_call_beside_the_first_turn_is_kept_and_not_trained(tmp_path: Path) -> None:
    script = by_prompt({"Count the files.": odd(call_text()), "title": odd("Counting"), "a b c": odd("Three.")})
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="opencode")
        client = world.client(access)
        title = [{"role": "system", "content": "Make a title."}, {"role": "user", "content": "title, please"}]
        answer, _ = await asyncio.gather(ask(client, [SYSTEM, TASK]), ask(client, title, tools=()))
        await ask(client, [SYSTEM, TASK, answer, tool_result(ids_of(answer)[0], "a b c")])
        calls = await world.settled(access)
        of = kinds(calls)
        side = [call for call in calls if of[call.call_id] is CallKind.SIDE]
        assert [call.answer.text for call in side] == ["Counting"]
        rows = lawful(calls)
        reasons = [reason for row in rows for reason in row.mask_reasons]
        assert reasons.count(MaskReason.SIDE_CALL) == len(side[0].sampled_ids)
        trained = sum(sum(row.loss_mask) for row in rows)
        assert trained == sum(len(call.sampled_ids) for call in calls if call is not side[0])


async def test_pi_appends_only_and_gives_one_row(tmp_path: Path) -> None:
    script = in_turn(odd(call_text()), odd("Look: " + call_text('{"command": "wc"}')), odd("Done."))
    async with proxy(tmp_path, script) as world:
        access = await world.open(harness="pi")
        client = world.client(access)
        history: list[Any] = [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Count."}]}]
        for _ in range(3):
            answer = through_javascript(await ask(client, history))
            history.append({name: value for name, value in answer.items() if value or name != "tool_calls"})
            history += [tool_result(call_id, "(no output)") for call_id in ids_of(answer)]
        calls = await world.settled(access)
        (row,) = lawful(calls)
        assert sum(row.loss_mask) == sum(len(call.sampled_ids) for call in calls)
        assert [call.prompt.parent for call in calls] == [None, calls[0].call_id, calls[1].call_id]
        assert reencoded(calls) == 0


async def test_fifty_interleaved_calls_of_two_sessions_stay_apart(tmp_path: Path) -> None:
    def echo(request: Any) -> Any:
        return odd(codec().decode(request.prompt_ids).rsplit("say ", 1)[1].split("<|im_end|>")[0])

    async with proxy(tmp_path, echo, max_concurrent_calls=50) as world:
        sessions = [await world.open(), await world.open()]
        clients = [world.client(access) for access in sessions]

        async def say(number: int, which: int) -> None:
            word = f"{'ab'[which]}{number}"
            answer = await ask(clients[which], [{"role": "user", "content": f"say {word}"}], tools=())
            assert answer["content"] == word

        await asyncio.gather(*(say(number, which) for number in range(50) for which in (0, 1)))
        for which, access in enumerate(sessions):
            calls = await world.settled(access)
            assert {call.answer.text for call in calls} == {f"{'ab'[which]}{number}" for number in range(50)}
            assert sorted(call.index for call in calls) == list(range(50))
            lawful(calls)
