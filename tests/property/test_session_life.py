"""Any life of a session: clients ask, wait, read, leave and ask again, engines fail, and a close comes at any moment.

What a client saw finished is recorded once and whole; a lost answer is given to the next equal request, once; what is
deliberately repeated is sampled again; a close cancels what is in flight; a sealed session never changes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openforgerl.engines.scripted import ScriptedAnswer, ScriptedEngine
from openforgerl.errors import AccessError
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.feed import Feed
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.session import LiveSession
from openforgerl.records import (
    CallFailed,
    CallFinished,
    CallStarted,
    Completion,
    GenerateRequest,
    Message,
    ModelRequest,
    RecordedCall,
    Role,
    Session,
)
from openforgerl.store.sqlite import Store
from proxy_world import FINISHED, Gate, codec, lawful, odd_ids, template

IN_MEMORY = Path("/dev/shm")
"""What survives a crash is another test's; here thousands of synced writes would only take time."""
TEXT = "an answer of some words"
MARKS: dict[str, dict[str, str]] = {
    "unmarked": {}, "retry": {"x-stainless-retry-count": "1"}, "key": {"idempotency-key": "k1"},
}  # fmt: skip


@dataclass(eq=False)
class Client:
    """One that reads as soon as there is something, once it reads at all."""

    session: str
    said: str
    mark: str
    feed: Feed
    task: asyncio.Task[None] | None = None
    call_id: str = ""
    end: CallFinished | CallFailed | None = None

    async def read(self) -> None:
        async for batch in self.feed.batches():
            for event in batch.events if batch else ():
                if isinstance(event, CallStarted):
                    self.call_id = event.call_id
                elif isinstance(event, CallFinished | CallFailed):
                    self.end = event
            if batch:
                self.feed.wrote(batch)
        self.feed.leave()

    async def leave(self) -> None:
        if self.task is None:
            self.feed.leave()
        elif not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])
            self.feed.leave()


@dataclass
class World:
    store: Store
    gateway: Gateway
    engine: ScriptedEngine
    live: dict[str, LiveSession] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    sealed: dict[str, tuple[RecordedCall, ...]] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    """What was said, by the id of the call that was sampled for it."""
    replays: int = 0

    def quiet(self) -> bool:
        """Every call in flight stands before its gate, and whoever reads has read what there is."""
        waiting = {request for request, gate in GATES.items() if gate.reached.is_set() and not gate.is_set()}
        flying = {call for live in self.live.values() for call in live.calls}
        reading = [client for client in self.clients if client.task and not client.task.done()]
        return (
            len(flying) == len(self.engine.running & waiting) == len(self.engine.running)
            and not any(client.feed._ready for client in reading)
            and not any(len(live.work) > len(live.calls) for live in self.live.values())
        )

    async def settle(self) -> None:
        async with asyncio.timeout(20):
            while not self.quiet():  # noqa: ASYNC110 (nothing tells when a thread has written)
                await asyncio.sleep(0.001)


GATES: dict[str, Gate] = {}


def started_in(feed: Feed) -> set[str]:
    """The id of the call that a feed shows; none while it has not started."""
    events = [event for batch in feed._broadcast._batches for event in batch.events]
    return {event.call_id for event in events if isinstance(event, CallStarted)}


class SessionLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        GATES.clear()
        self.folder = TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
        self.runner = asyncio.Runner()
        self.plan: tuple[str, int] = ("fine", 0)
        self.world = self.runner.run(self._start())

    async def _start(self) -> World:
        store = Store.open(Path(self.folder.name))
        engine = ScriptedEngine(self._sample, codec())
        gateway = Gateway(engine=engine, store=store, template=template(), config=ProxyConfig(close_timeout_s=20))
        self.running = gateway.running()
        await self.running.__aenter__()
        return World(store=store, gateway=gateway, engine=engine)

    def _sample(self, request: GenerateRequest) -> ScriptedAnswer:
        outcome, at = self.plan
        ids = odd_ids(TEXT)
        gate = GATES[request.request_id] = Gate()
        return ScriptedAnswer(
            ids=ids,
            chunk_sizes=(3,),
            gates={at: gate},
            fail_after=at + 2 if outcome == "fail" else None,
            abort_after=at + 2 if outcome == "abort" else None,
        )

    def _run(self, act: Any) -> Any:
        return self.runner.run(act)

    @rule()
    @precondition(lambda self: len(self.world.live) < 2)
    def open(self) -> None:
        async def act() -> None:
            name = f"s{len(self.world.keys)}"
            access = await self.world.gateway.open_session(Session(session_id=name))
            self.world.keys[name] = access.key
            self.world.live[name] = self.world.gateway.authorize(name, access.key)

        self._run(act())

    @rule(
        data=st.data(),
        said=st.sampled_from("aab"),
        mark=st.sampled_from(tuple(MARKS)),
        outcome=st.sampled_from(("fine", "fine", "fine", "fail", "abort")),
        at=st.sampled_from((0, 4, 9)),
        reads=st.booleans(),
    )
    @precondition(lambda self: bool(self.world.live))
    def ask(self, data: st.DataObject, said: str, mark: str, outcome: str, at: int, reads: bool) -> None:
        world = self.world
        name = data.draw(st.sampled_from(sorted(world.live)))
        self.plan = (outcome, at)
        lost = self._lost(name, said)
        retried = {each.call_id for each in world.clients if each.feed.retry and isinstance(each.end, CallFinished)}
        before = len(world.engine.requests)

        async def act() -> None:
            request = ModelRequest(messages=(Message(role=Role.USER, text=said),))
            feed = world.gateway.answer(world.live[name], "chat", request, MARKS[mark])
            client = Client(name, said, mark, feed)
            world.clients.append(client)
            if reads:
                client.task = asyncio.create_task(client.read())
            await world.settle()

        self._run(act())
        sampled = world.engine.requests[before:]
        if sampled:
            (new,) = sampled
            world.asked[new.request_id] = said
        else:
            world.replays += 1
            assert not started_in(world.clients[-1].feed) & retried, "an answer is given again once"
        if mark == "unmarked":
            assert bool(sampled) is not bool(lost), "a lost answer is given again, anything else is a new sample"

    def _lost(self, name: str, said: str) -> list[RecordedCall]:
        """Committed and whole, and nobody who asked for it has its end or still waits for it."""
        world = self.world
        ended = {client.call_id for client in world.clients if isinstance(client.end, CallFinished)}
        waiting = [client.feed for client in world.clients if client.feed in client.feed._broadcast._feeds]
        held = {call_id for feed in waiting for call_id in started_in(feed)}
        return [
            call
            for call in world.store.calls(name)
            if call.completion is Completion.COMPLETE
            and world.asked.get(call.call_id) == said
            and call.call_id not in ended | held
        ]

    @rule(data=st.data())
    @precondition(lambda self: bool(self.world.engine.running))
    def go_on(self, data: st.DataObject) -> None:
        GATES[data.draw(st.sampled_from(sorted(self.world.engine.running)))].set()
        self._run(self.world.settle())

    @rule(data=st.data())
    @precondition(lambda self: any(client.task is None for client in self.world.clients))
    def begin_to_read(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([each for each in self.world.clients if each.task is None]))

        async def act() -> None:
            client.task = asyncio.create_task(client.read())
            await self.world.settle()

        self._run(act())

    @rule(data=st.data())
    @precondition(lambda self: any(client.end is None for client in self.world.clients))
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([each for each in self.world.clients if each.end is None]))

        async def act() -> None:
            await client.leave()
            self.world.clients.remove(client)
            await self.world.settle()

        self._run(act())

    def _unread(self) -> list[Client]:
        """They wait for a call that is being sampled, and have read nothing of it."""
        running = self.world.engine.running
        return [each for each in self.world.clients if each.task is None and started_in(each.feed) & running]

    @rule(data=st.data())
    @precondition(lambda self: bool(self._unread()))
    def lose_an_answer(self, data: st.DataObject) -> None:
        """It is recorded, and its client leaves without it."""
        client = data.draw(st.sampled_from(self._unread()))
        (call_id,) = started_in(client.feed)

        async def act() -> None:
            GATES[call_id].set()
            await self.world.settle()
            await client.leave()
            self.world.clients.remove(client)
            await self.world.settle()

        self._run(act())

    @rule(data=st.data())
    @precondition(lambda self: bool(self.world.live))
    def close(self, data: st.DataObject) -> None:
        world = self.world
        name = data.draw(st.sampled_from(sorted(world.live)))
        flying = set(world.engine.running) & {call._intent.call_id for call in world.live[name].calls}

        async def act() -> None:
            await world.gateway.close_session(name, FINISHED)
            live = world.live.pop(name)
            with pytest.raises(AccessError):
                world.gateway.answer(live, "chat", ModelRequest(messages=(Message(role=Role.USER, text="a"),)), {})
            await world.settle()

        self._run(act())
        calls = world.store.calls(name)
        assert flying <= set(world.engine.cancelled)
        assert flying == {call.call_id for call in calls if call.completion is Completion.LATE}
        assert world.store.intents(name) == ()
        lawful(calls)
        world.sealed[name] = calls

    @invariant()
    def what_a_client_saw_finished_is_recorded_once_and_whole(self) -> None:
        for client in self.world.clients:
            if isinstance(client.end, CallFinished):
                found = [c for c in self.world.store.calls(client.session) if c.call_id == client.call_id]
                assert [call.completion for call in found] == [Completion.COMPLETE]
                assert found[0].answer.text == TEXT

    @invariant()
    def a_sealed_session_never_changes_and_its_key_is_dead(self) -> None:
        for name, calls in self.world.sealed.items():
            assert self.world.store.calls(name) == calls
            with pytest.raises(AccessError) as refused:
                self.world.gateway.authorize(name, self.world.keys[name])
            assert refused.value.http_status == 410

    def teardown(self) -> None:
        async def end() -> None:
            for name in sorted(self.world.live):
                await self.world.gateway.close_session(name, FINISHED)
            for client in self.world.clients:
                await client.leave()
            await self.running.__aexit__(None, None, None)
            for name in self.world.keys:
                calls = self.world.store.calls(name)
                assert self.world.store.intents(name) == ()
                lawful(calls)
                assert {call.call_id for call in calls} <= {each.request_id for each in self.world.engine.requests}
            assert self.world.gateway.totals["retries_answered_again"] == self.world.replays
            await self.world.store.aclose()

        self.runner.run(end())
        self.runner.close()
        self.folder.cleanup()


TestSessionLife = SessionLife.TestCase
TestSessionLife.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
