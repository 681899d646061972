"""Real harnesses in real sandboxes, graded by the tasks' own tests; a scripted policy stands for the model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from openforgerl.engines.scripted import ScriptedAnswer, ScriptedEngine
from openforgerl.graders.tests import TestsGrader
from openforgerl.harnesses.base import Harness, HarnessConfig
from openforgerl.harnesses.installing import cache_folder
from openforgerl.harnesses.pi import Pi
from openforgerl.harnesses.react import React
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from openforgerl.records import EndedBy, GenerateRequest, Session, Task
from openforgerl.rollout.attempt import RolloutRequest, World
from openforgerl.rollout.config import RolloutConfig
from openforgerl.rollout.scheduler import Scheduler
from openforgerl.runtimes.process import ProcessRuntime, ProcessRuntimeConfig
from openforgerl.store.sqlite import Store
from openforgerl.tasks.harbor import load_tasks
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import Template
from openforgerl.trajectories import check_rows, rows
from openforgerl.workflows.teacher import Teacher

ROOT = Path(__file__).parents[2]
SHORT = HarnessConfig(name="any", system_prompt="Do the task with one bash command.", tools=("bash",))
Script = Callable[[GenerateRequest], str | ScriptedAnswer]


@asynccontextmanager
async def scheduler(
    tmp_path: Path, harness: Harness, script: Callable[[Codec], Script], **limits: float
) -> AsyncIterator[tuple[Scheduler, Store]]:
    codec = Codec.load(ROOT / "tests" / "fixtures" / "tiny-chatml")
    engine = ScriptedEngine(script(codec), codec)
    store = Store.open(tmp_path / "store")
    (tmp_path / "logs").mkdir()
    harness.install(cache_folder())
    gateway = Gateway(
        engine=engine, store=store, template=Template.load(codec), config=ProxyConfig(max_calls_per_session=5)
    )
    async with serve(gateway, admin_token="admin") as server:
        world = World(
            run_id="test-rollouts",
            gateway=gateway,
            proxy_address=server.address,
            runtime=ProcessRuntime(ProcessRuntimeConfig(root=tmp_path / "boxes")),
            harness=harness,
            grader=TestsGrader(),
            cache=cache_folder(),
            logs=tmp_path / "logs",
        )
        yield Scheduler(world, RolloutConfig(concurrency=8, **limits)), store
    await store.aclose()


def requests(tasks: tuple[Task, ...]) -> tuple[RolloutRequest, ...]:
    return tuple(RolloutRequest(rollout_id=f"r-{t.task_id}"[:50], group_id="g", task=t) for t in tasks)


def reward(session: Session) -> float | None:
    assert session.grade is not None
    return session.grade.reward


@pytest.mark.parametrize("harness", [React, Pi])
async def test_the_teacher_solves_every_example_task_and_its_rows_keep_the_laws(
    tmp_path: Path, harness: type[React] | type[Pi]
) -> None:
    tasks = load_tasks(ROOT / "examples/shell_tasks/train")
    wanted = requests(tasks if harness is React else tasks[::10])
    by_rollout = {request.rollout_id: request.task for request in wanted}
    async with scheduler(tmp_path, harness(SHORT), lambda codec: Teacher(codec, by_rollout)) as (many, store):
        sessions = await many.collect(wanted)
        assert {
            session.task_id: (session.ending, session.grade) for session in sessions if reward(session) != 1.0
        } == {}
        for session in sessions:
            calls = store.calls(session.session_id)
            found = rows(calls)
            assert len(calls) == 2
            assert len(found) == 1
            assert check_rows(calls, found) == ()
            assert sum(found[0].loss_mask) == sum(len(call.sampled_ids) for call in calls)


async def test_an_agent_that_does_nothing_is_finished_with_reward_0(tmp_path: Path) -> None:
    wanted = requests(load_tasks(ROOT / "examples/shell_tasks/heldout"))
    async with scheduler(tmp_path, React(SHORT), lambda codec: lambda request: "Nothing to do.") as (many, _):
        sessions = await many.collect(wanted)
    assert [reward(session) for session in sessions] == [0.0] * len(wanted)
    assert {session.ending.ended_by for session in sessions if session.ending} == {EndedBy.FINISHED}


async def test_an_agent_that_loops_meets_the_cap_of_calls_and_is_graded(tmp_path: Path) -> None:
    wanted = requests(load_tasks(ROOT / "examples/shell_tasks/train")[:1])
    call = '<tool_call>{"name": "bash", "arguments": {"command": "true"}}</tool_call>'
    async with scheduler(tmp_path, React(SHORT), lambda codec: lambda request: call) as (many, store):
        (session,) = await many.collect(wanted)
        assert len(store.calls(session.session_id)) == 5
    assert session.ending is not None
    assert (session.ending.ended_by, session.ending.reason) == (EndedBy.AGENT_TIMEOUT, "calls exhausted")
    assert reward(session) == 0.0


async def test_the_deadline_ends_an_agent_whose_command_hangs(tmp_path: Path) -> None:
    wanted = requests(load_tasks(ROOT / "examples/shell_tasks/train")[:1])
    call = '<tool_call>{"name": "bash", "arguments": {"command": "sleep 3600"}}</tool_call>'
    async with scheduler(tmp_path, React(SHORT), lambda codec: lambda request: call, deadline_s=3.0) as (many, _):
        (session,) = await many.collect(wanted)
    assert session.ending is not None
    assert session.ending.ended_by is EndedBy.AGENT_TIMEOUT
    assert reward(session) == 0.0
