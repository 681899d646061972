"""One attempt: session, sandbox, agent, seal, grade. Whatever happens it ends with an ending and a grade (law 4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from openforgerl.errors import GraderError, SandboxError
from openforgerl.graders.base import Grader
from openforgerl.harnesses.base import Harness, ModelAccess
from openforgerl.proxy.gateway import Gateway
from openforgerl.records import EndedBy, Ending, Grade, Sampling, Session, Task
from openforgerl.rollout.config import RolloutConfig
from openforgerl.runtimes.base import EndCause, RunEnd, Runtime, Sandbox, SandboxSpec

_TEARDOWN_S = 30.0
_OVER_LIMIT = {EndCause.OOM: "memory limit", EndCause.DISK: "disk limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that an attempt needs beside its task."""

    run_id: str
    gateway: Gateway
    proxy_address: tuple[str, int]
    runtime: Runtime
    harness: Harness
    grader: Grader
    cache: Path
    """Where harnesses are installed."""
    logs: Path
    """Folder for the agents' output, one file a session."""
    model_name: str = "policy"
    context_length: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One rollout that is wanted."""

    rollout_id: str
    group_id: str
    task: Task
    labels: Mapping[str, str] = field(default_factory=dict)
    first_attempt: int = 0
    """Above 0 where earlier attempts are in the store already."""
    seed: int | None = None


async def run_attempt(world: World, config: RolloutConfig, request: RolloutRequest, attempt: int) -> Session:
    """The sealed and graded session. Raises only what cancels it, after sealing it as cancelled."""
    session = Session(
        session_id=f"{request.rollout_id}-a{attempt}",
        task_id=request.task.task_id,
        group_id=request.group_id,
        rollout_id=request.rollout_id,
        attempt=attempt,
        harness=world.harness.name,
        sampling=_pinned(config, request.seed),
        labels=request.labels,
        created_at=time.time(),
    )
    access = await world.gateway.open_session(session)
    try:
        ending, grade = await _live(world, config, request.task, session, access.key)
    except asyncio.CancelledError:
        ending, grade = Ending(ended_by=EndedBy.CANCELLED), Grade(kind="ungraded", reason="cancelled")
        await asyncio.shield(_settle(world, session, ending, grade))
        raise
    await _settle(world, session, ending, grade)
    return replace(session, ending=ending, grade=grade)


def _pinned(config: RolloutConfig, seed: int | None) -> Sampling:
    """The whole distribution, whatever the harness asks for: of a truncated one nothing could be trained."""
    return Sampling(
        temperature=config.temperature,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        max_tokens=config.max_tokens,
        seed=seed,
    )


async def _settle(world: World, session: Session, ending: Ending, grade: Grade) -> None:
    await world.gateway.close_session(session.session_id, ending)
    await world.gateway.grade(session.session_id, grade)


async def _live(world: World, config: RolloutConfig, task: Task, session: Session, key: str) -> tuple[Ending, Grade]:
    """Set-up, agent and grader under one deadline that includes them all. Once sealed, an ending stays."""
    sealed: Ending | None = None
    started = time.monotonic()
    agent_s = min(config.deadline_s, task.agent_timeout_s)
    spec = SandboxSpec(
        run_id=world.run_id,
        session_id=session.session_id,
        workspace=task.workspace,
        proxy_address=world.proxy_address,
    )
    try:
        async with asyncio.timeout(agent_s + task.grader_timeout_s + _TEARDOWN_S), world.runtime.sandbox(spec) as box:
            left_s = agent_s - (time.monotonic() - started)
            if left_s <= 0:
                raise SandboxError(f"the set-up took the whole deadline of {agent_s:g} s")
            ending = await _run_agent(world, config, task, session, key, box, left_s)
            await world.gateway.close_session(session.session_id, ending)
            sealed = ending
            return sealed, await _grade(world, task, box, sealed)
    except TimeoutError:
        return _failed(sealed, "deadline of the whole attempt passed")
    except SandboxError as error:
        return _failed(sealed, f"sandbox: {error}")


async def _run_agent(
    world: World, config: RolloutConfig, task: Task, session: Session, key: str, box: Sandbox, left_s: float
) -> Ending:
    access = ModelAccess(
        base_url=f"{box.proxy_url}/s/{session.session_id}",
        key=key,
        model=world.model_name,
        context_length=world.context_length,
        max_tokens=config.max_tokens,
    )
    plan = replace(world.harness.plan(task, access, world.cache), deadline_s=left_s)
    end = await box.run(plan, user="agent")
    dropped = f"\n[{end.output_dropped} bytes of output were dropped]\n".encode() if end.output_dropped else b""
    _keep_output(world.logs / f"{session.session_id}.log", end.output + dropped)
    world.gateway.count(session.session_id, "output_bytes_dropped", end.output_dropped)
    status = world.gateway.status(session.session_id)
    return ending_of(end, status.counters, status.last_failure)


def _keep_output(file: Path, output: bytes) -> None:
    """A disk that is full is infrastructure, whatever the agent did."""
    try:
        file.write_bytes(output)
    except OSError as error:
        raise SandboxError(f"{file} cannot be written: {error.strerror}") from error


async def _grade(world: World, task: Task, box: Sandbox, ending: Ending) -> Grade:
    """A timeout or a crash of the agent is graded like any other end; infrastructure is not."""
    if ending.ended_by is EndedBy.INFRA:
        return Grade(kind="ungraded", reason="infra")
    try:
        return await world.grader.grade(task, box)
    except (GraderError, SandboxError) as error:
        return Grade(kind="grader_error", reason=str(error))


def _failed(sealed: Ending | None, reason: str) -> tuple[Ending, Grade]:
    """Infrastructure failed: before the seal the attempt ended so, after it only the grade is missing."""
    if sealed is None:
        return _infra(reason), Grade(kind="ungraded", reason="infra")
    return sealed, Grade(kind="grader_error", reason=reason)


def _infra(reason: str) -> Ending:
    return Ending(ended_by=EndedBy.INFRA, reason=reason)


def ending_of(end: RunEnd, counters: Mapping[str, int], last_failure: str) -> Ending:
    """Law 4: an end of the program and what the proxy saw of its calls, as one named ending.

    What its newest call failed by decides, whatever the exit code: some harnesses exit with 0 when they give up. A
    failure that the harness got over decides nothing.
    """
    if not counters.get("calls"):
        return _infra("the harness made no model call")
    if end.cause in _OVER_LIMIT:
        return Ending(ended_by=EndedBy.AGENT_CRASH, reason=_OVER_LIMIT[end.cause])
    if last_failure == "context_full":
        return Ending(ended_by=EndedBy.CONTEXT_FULL)
    if last_failure:
        return _infra(f"the last model call failed at the {last_failure.partition('_')[0]}")
    if end.cause is EndCause.DEADLINE:
        return Ending(ended_by=EndedBy.AGENT_TIMEOUT)
    if counters.get("calls_exhausted"):
        return Ending(ended_by=EndedBy.AGENT_TIMEOUT, reason="calls exhausted")
    if end.signal is not None:
        return Ending(ended_by=EndedBy.AGENT_CRASH, reason=f"signal {end.signal}")
    if end.exit_code != 0:
        return Ending(ended_by=EndedBy.AGENT_CRASH, reason=f"exit code {end.exit_code}")
    return Ending(ended_by=EndedBy.FINISHED)
