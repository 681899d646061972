"""Laws 1 and 2 over the prompts of random sessions, for the tokens package and for mutants of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from assembly_oracle import Oracle, shared
from openforgerl.records import ModelRequest
from random_histories import History, RandomSession
from token_world import BASH, FIXTURE, TOKENS


def assert_laws(random: Random, modules: str = TOKENS, folder: Path = FIXTURE, steps: int = 7) -> None:
    """Every prompt of a random session is the right one, and a fresh assembler gives the same."""
    session = RandomSession(random, modules, keep=random.random() < 0.3, folder=folder)
    world = session.world
    for _ in range(steps):
        asked = session.step()
        call, request = world.calls[-1], world.requests[-1]
        earlier = replace(world, calls=world.calls[:-1], prompts=world.prompts[:-1], requests=world.requests[:-1])
        oracle = Oracle(earlier, keep=session.keep, history=asked, tools=request.tools)
        assert world.prompts[-1] == oracle.ids
        assert call.prompt.new_ids == oracle.ids[call.prompt.cut :]
        for history in (session.branches[-1], session.changed()):
            assert_prompt(session, history)
    fresh = world.fresh()
    for call in world.calls:
        fresh.remember(call)
    for request in world.requests:
        assert fresh.assemble(request) == world.assembler.assemble(request)


def assert_prompt(session: RandomSession, history: History) -> None:
    """It holds the ids and the counts that brute force finds, and its deltas are the shortest."""
    world = session.world
    oracle = Oracle(world, keep=session.keep, history=history, tools=(BASH,))
    prompt = world.assembler.assemble(ModelRequest(messages=history.messages, tools=(BASH,)))
    assert prompt.ids == oracle.ids
    assert dict(prompt.counters) == {name: count for name, count in oracle.counters.items() if count}
    wholes = [ids + call.sampled_ids for ids, call in zip(world.prompts, world.calls, strict=True)]
    assert_delta(prompt.ids, prompt.delta, prompt.delta.new_ids, wholes)
    assert_delta(history.messages, prompt.messages, prompt.messages.new, [asked.messages for asked in world.requests])


def assert_delta(whole: tuple[Any, ...], delta: Any, new: tuple[Any, ...], earlier: list[tuple[Any, ...]]) -> None:
    lengths = [shared(whole, before) for before in earlier]
    assert delta.cut == max(lengths)
    assert whole[delta.cut :] == new
    assert delta.parent == (f"c{lengths.index(delta.cut)}" if delta.cut else None)
