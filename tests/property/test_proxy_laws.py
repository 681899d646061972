"""Laws 1 to 3 over random conversation trees through the gateway, with engine faults and clients that leave.

Answers are sampled with ids cut at random, so that the tokenizer's own spelling is the exception.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from openforgerl.engines.scripted import ScriptedAnswer, ScriptedEngine
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.session import LiveSession
from openforgerl.records import (
    CallStarted,
    Completion,
    GenerateRequest,
    Message,
    ModelRequest,
    RecordedCall,
    Role,
    Sampling,
    Session,
    ToolSpec,
)
from openforgerl.store.sqlite import Store
from openforgerl.trajectories import prompt_ids
from proxy_world import FINISHED, call_text, codec, lawful, template

WORDS = ("ok", "look", " é😀", "<tool_call>", "\n\n", "  ", "1.0", "</think>", "<|im_end|>", "yes")
TOOLS = (ToolSpec(name="bash", definition='{"name": "bash", "parameters": {"type": "object"}}'),)
FAULTS = (None, None, None, "abort", "error", "leave", "length")


@dataclass
class Client:
    """A harness over one session: the conversations that it holds, as it sees them."""

    random: Random
    gateway: Gateway
    store: Store
    live: LiveSession
    conversations: list[tuple[Message, ...]] = field(default_factory=list)

    def ask(self) -> tuple[Message, ...]:
        """A new conversation, or a further turn of one of them, perhaps told a little differently."""
        random = self.random
        if not self.conversations or random.random() < 0.3:
            return (Message(role=Role.SYSTEM, text="S"), Message(role=Role.USER, text=random.choice(WORDS)))
        kept = random.choice(self.conversations)
        return tuple(self.retold(message) for message in kept)

    def retold(self, message: Message) -> Message:
        """The freedom that harnesses take: JSON printed again, white space at the ends."""
        if message.role is not Role.ASSISTANT or self.random.random() < 0.5:
            return message
        calls = [replace(call, arguments=reprinted(call.arguments)) for call in message.tool_calls]
        return replace(message, tool_calls=tuple(calls), text=message.text.strip() if calls else message.text)

    async def call(self, number: int) -> None:
        messages = self.ask()
        tools = TOOLS if self.random.random() < 0.8 else ()
        asked = Sampling(max_tokens=self.random.choice((None, None, 3)))
        request = ModelRequest(messages=messages, tools=tools, sampling=asked)
        feed = self.gateway.answer(self.live, "chat", request, {})
        leave_after = self.random.randrange(1, 6) if self.random.random() < 0.15 else None
        started: CallStarted | None = None
        seen = 0
        try:
            async for batch in feed.batches():
                seen += 1
                started = next((event for event in batch.events if isinstance(event, CallStarted)), started)
                if batch.last and batch.error is None:
                    self.learn(messages, started, number)
                if leave_after is not None and seen >= leave_after and not batch.last:
                    break
                feed.wrote(batch)
                if self.random.random() < 0.3:
                    await asyncio.sleep(0)
        finally:
            feed.leave()

    def learn(self, messages: tuple[Message, ...], started: CallStarted | None, number: int) -> None:
        """Law 3: at the terminal event the answer is in the store."""
        done = {call.call_id: call for call in self.store.calls(self.live.session.session_id)}
        assert started is not None
        assert done[started.call_id].completion is Completion.COMPLETE
        answer = done[started.call_id].answer
        results = [Message(role=Role.TOOL, tool_call_id=call.id, text=f"out {number}") for call in answer.tool_calls]
        go_on = Message(role=Role.USER, text=f"go on {number}")
        self.conversations.append((*messages, answer, *(results or [go_on])))


def reprinted(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        return arguments


def random_answer(random: Random) -> ScriptedAnswer:
    text = "".join(random.choices(WORDS, k=random.randrange(4)))
    if random.random() < 0.6:
        text += call_text(json.dumps({"command": random.choice(WORDS), "n": 1.0}))
    if random.random() < 0.2:
        text = f"<think>\n{random.choice(WORDS)}\n</think>\n\n{text}"
    ids, left = [], text
    while left:
        size = random.randrange(1, 6)
        ids += codec().encode(left[:size])
        left = left[size:]
    fault = random.choice(FAULTS)
    ends = () if fault == "length" and ids else template().codec.stop_ids[:1]
    ids = (*ids, *ends)
    at = random.randrange(len(ids) + 1)
    return ScriptedAnswer(
        ids=ids,
        chunk_sizes=tuple(random.choices(range(1, 5), k=3)),
        logprobs=tuple(-random.random() for _ in ids),
        abort_after=at if fault == "abort" else None,
        fail_after=at if fault == "error" else None,
    )


@dataclass
class Sampler:
    """Remembers what it said to whom."""

    random: Random
    said: dict[str, tuple[GenerateRequest, ScriptedAnswer]] = field(default_factory=dict)

    def __call__(self, request: GenerateRequest) -> ScriptedAnswer:
        answer = random_answer(self.random)
        self.said[request.request_id] = (request, answer)
        return answer


def check(calls: tuple[RecordedCall, ...], sampler: Sampler) -> None:
    prompts = prompt_ids(calls)
    assert {call.call_id for call in calls if call.sampled_ids} <= sampler.said.keys()
    for call in calls:
        if call.call_id not in sampler.said:
            continue
        request, answer = sampler.said[call.call_id]
        assert answer.ids is not None
        assert answer.logprobs is not None
        assert prompts[call.call_id] == request.prompt_ids, "the record's prompt is what the engine saw"
        count = len(call.sampled_ids)
        assert call.sampled_ids == answer.ids[:count]
        assert call.logprobs == answer.logprobs[:count]
        assert call.delivered.count <= count
    rows = lawful(calls)
    for row in rows:
        for segment in row.segments:
            request, _ = sampler.said[segment.call_id]
            assert row.token_ids[: segment.start] == request.prompt_ids


async def live_through(seed: int, folder: Path) -> None:
    random = Random(seed)
    sampler = Sampler(random)
    store = Store.open(folder)
    engine = ScriptedEngine(sampler, template().codec, context_length=4096)
    gateway = Gateway(engine=engine, store=store, template=template(), config=ProxyConfig())
    async with gateway.running():
        access = await gateway.open_session(Session(session_id="s"))
        client = Client(random, gateway, store, gateway.authorize("s", access.key))
        number = 0
        for _ in range(random.randrange(1, 6)):
            together = random.choice((1, 1, 2, 3))
            await asyncio.gather(*(client.call(number + place) for place in range(together)))
            number += together
        await gateway.close_session("s", FINISHED)
        assert store.intents("s") == (), "every call that began is recorded"
        calls = store.calls("s")
        counters = gateway.status("s").counters
        assert len(calls) == counters["calls"] == number - counters.get("retries_answered_again", 0)
        assert [call.index for call in calls] == list(range(len(calls)))
        check(calls, sampler)
    await store.aclose()
    with_open = Store.open(folder, read_only=True)
    assert with_open.calls("s") == calls
    with_open.close()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_laws_hold_for_any_conversation(seed: int) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(live_through(seed, Path(folder) / "store"))
