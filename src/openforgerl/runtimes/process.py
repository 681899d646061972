"""Sandboxes as local processes: bubblewrap by default, plain processes where the user says `unsafe`.

Law 6: every process has an owner (this one; the kernel kills the tree when it dies), a label (run and session) and a
deadline on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from openforgerl.errors import SandboxError
from openforgerl.records import LaunchPlan, check_id
from openforgerl.runtimes.base import EndCause, RunEnd, RuntimeLimits, Sandbox, SandboxSpec
from openforgerl.runtimes.process_disk import above_limit
from openforgerl.runtimes.process_folder import SandboxFolder, own_root
from openforgerl.runtimes.process_isolated import IsolatedPrograms, find_bwrap, probe
from openforgerl.runtimes.process_net import Forwarder
from openforgerl.runtimes.process_plain import ISOLATION, PlainPrograms
from openforgerl.runtimes.process_sweep import MARK, sweep
from openforgerl.runtimes.process_tree import ProcessTree, to_its_end


class ProcessRuntimeConfig(BaseModel):
    """[runtime] of the process runtime."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unsafe: bool = False
    """Plain processes without isolation: the agent can read and change whatever you can."""
    root: Path | None = None
    """Where sandboxes' folders live; default <tmp>/openforgerl-<uid>."""
    limits: RuntimeLimits = Field(default_factory=RuntimeLimits)
    first_uid: int = 200_000
    """As root: sandboxes run as users from this id on, two each, which must belong to nobody."""


class Programs(Protocol):
    """Starts the programs of one sandbox: isolated, or plain."""

    proxy_url: str

    async def start(self, plan: LaunchPlan, user: Literal["agent", "grader"]) -> ProcessTree: ...

    async def connect(self, tree: ProcessTree) -> Forwarder | None: ...

    def out_of_memory_kills(self) -> int: ...

    async def settle(self) -> None: ...

    async def close(self) -> None: ...


class ProcessSandbox:
    """A live sandbox: one program at a time."""

    def __init__(self, folder: SandboxFolder, programs: Programs, limits: RuntimeLimits) -> None:
        self._folder = folder
        self._programs = programs
        self._limits = limits
        self._turn = asyncio.Lock()
        self.proxy_url = programs.proxy_url

    async def run(self, plan: LaunchPlan, *, user: Literal["agent", "grader"]) -> RunEnd:
        try:
            return await self._run(plan, user)
        except OSError as error:
            raise SandboxError(f"cannot run {plan.argv[0]}: {error}") from error

    async def _run(self, plan: LaunchPlan, user: Literal["agent", "grader"]) -> RunEnd:
        async with self._turn:
            kills = self._programs.out_of_memory_kills()
            _check_mounts(plan)
            tree = await self._programs.start(plan, user)
            begun = time.monotonic()
            try:
                await tree.ready()
                cause, code = await self._to_the_end(tree, plan.deadline_s, networked=user == "agent")
            finally:
                await to_its_end(self._kill(tree))
            if code == 128 + signal.SIGKILL and self._programs.out_of_memory_kills() > kills:
                cause = EndCause.OOM
            return _end(tree, cause, code, time.monotonic() - begun)

    async def _to_the_end(self, tree: ProcessTree, deadline_s: float, *, networked: bool) -> tuple[EndCause, int]:
        forwarder = await self._programs.connect(tree) if networked else None
        try:
            await tree.release()
            return await self._first_cause(tree, deadline_s)
        finally:
            if forwarder is not None:
                await to_its_end(forwarder.close())

    async def _first_cause(self, tree: ProcessTree, deadline_s: float) -> tuple[EndCause, int]:
        """What happens first: the program's own end, its deadline, or more files than it may have."""
        ended = asyncio.ensure_future(tree.wait())
        full = asyncio.ensure_future(above_limit(self._folder.path, self._limits))
        try:
            await asyncio.wait({ended, full}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return EndCause.EXITED, ended.result()
            return EndCause.DISK if full.done() else EndCause.DEADLINE, 128 + signal.SIGKILL
        finally:
            for waiting in (ended, full):
                waiting.cancel()
            await asyncio.wait({ended, full})

    async def _kill(self, tree: ProcessTree) -> None:
        try:
            await tree.kill()
        finally:
            await self._programs.settle()

    async def get(self, path: str, *, cap_bytes: int = 1_000_000) -> bytes | None:
        return self._folder.read(path, cap_bytes)


def _check_mounts(plan: LaunchPlan) -> None:
    for place, folder in plan.mounts.items():
        if not folder.exists():
            raise SandboxError(f"mount {place}: {folder} does not exist")


def _end(tree: ProcessTree, cause: EndCause, code: int, duration_s: float) -> RunEnd:
    number = code - 128 if code > 128 else None
    return RunEnd(
        cause=cause, exit_code=code if number is None else None, signal=number, output=tree.output,
        output_dropped=tree.output_dropped, duration_s=duration_s,
    )  # fmt: skip


class ProcessRuntime:
    """Makes sandboxes on this machine. Raises ConfigError at once where it could not make any."""

    def __init__(self, config: ProcessRuntimeConfig) -> None:
        self._config = config
        self._root = config.root or Path(tempfile.gettempdir()) / f"openforgerl-{os.getuid()}"
        own_root(self._root)
        self.isolation = ISOLATION
        self._removals_left = 0
        if not config.unsafe:
            self._bwrap = find_bwrap()
            self.isolation = probe(self._bwrap, self._root, config.limits, config.first_uid)

    @property
    def counters(self) -> Mapping[str, int]:
        """removals_left: sandboxes whose files took too long to remove and wait for the next sweep."""
        return {"removals_left": self._removals_left}

    def sandbox(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._sandbox(spec)

    @asynccontextmanager
    async def _sandbox(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        folder = SandboxFolder(self._root, spec.run_id, spec.session_id)
        programs: Programs | None = None
        try:
            try:
                await folder.fill(spec.workspace)
                programs = self._programs(folder, spec)
            except OSError as error:
                raise SandboxError(f"cannot make a sandbox: {error}") from error
            yield ProcessSandbox(folder, programs, self._config.limits)
        finally:
            await to_its_end(self._remove(folder, programs))

    def _programs(self, folder: SandboxFolder, spec: SandboxSpec) -> Programs:
        config = self._config
        if config.unsafe:
            return PlainPrograms(folder, spec, config.limits)
        mark = {MARK: f"{spec.run_id}/{spec.session_id}"}
        return IsolatedPrograms(self._bwrap, mark, folder, spec, config.limits, config.first_uid, self._root)

    async def _remove(self, folder: SandboxFolder, programs: Programs | None) -> None:
        try:
            if programs is not None:
                await programs.close()
        finally:
            if not await folder.remove():
                self._removals_left += 1

    async def sweep(self, run_id: str) -> int:
        check_id("run_id", run_id)
        return await sweep(self._root, run_id)
