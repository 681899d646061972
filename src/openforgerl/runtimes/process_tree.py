"""A tree of processes that has an owner: started blocked, released when its world is ready, dead as a whole at the end.

The protocol with what is started (bubblewrap's prelude, or the plain supervisor): its stdin is a socket; it writes a
line when it is ready, waits for a line, and gives up if the socket closes instead, because then its owner is dead.
The kernel kills it when the *thread* that started it ends (PR_SET_PDEATHSIG): start trees in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from openforgerl.errors import SandboxError
from openforgerl.runtimes.process_output import OutputReader

START_DEADLINE_S = 30.0
KILL_DEADLINE_S = 15.0
_DRAIN_DEADLINE_S = 2.0

_T = TypeVar("_T")


async def to_its_end(step: Coroutine[Any, Any, _T]) -> _T:
    """Await a tear-down step to its end although the waiting task is cancelled, then let the cancellation through."""
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()


async def readable(descriptor: int) -> None:
    """Wait until a descriptor can be read; a pidfd can when its process is dead."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeStart:
    """What to start. The descriptors in `pass_fds` are closed here once it runs."""

    argv: Sequence[str]
    env: Mapping[str, str]
    pass_fds: Sequence[int]
    info: int | None
    """Read end of the pipe on which bubblewrap names the sandbox's process 1; None: what is started dies last."""
    output_cap: int
    cwd: str = "/"


class ProcessTree:
    """A running tree. `kill` is idempotent and must be called in the end."""

    def __init__(self, start: TreeStart) -> None:
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        read_end, write_end = os.pipe()
        try:
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(
                start.argv, env=dict(start.env), pass_fds=start.pass_fds, stdin=theirs.fileno(), stdout=write_end,
                stderr=write_end, cwd=start.cwd, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            os.close(read_end)
            self._control.close()
            raise SandboxError(f"cannot start {start.argv[0]}: {error}") from error
        finally:
            for descriptor in (write_end, *start.pass_fds):
                os.close(descriptor)
            theirs.close()
        self._reader = OutputReader(read_end, start.output_cap)
        try:
            self._launcher = os.pidfd_open(self._popen.pid)
        except OSError as error:
            self._control.close()
            self._popen.kill()
            self._popen.wait()
            self._reader.close()
            raise SandboxError(f"cannot watch a process: {error}") from error
        self._info = start.info
        if self._info is not None:
            os.set_blocking(self._info, False)
        self._init: int | None = None
        self.init_pid = self._popen.pid
        self.is_dead = False

    @property
    def output(self) -> bytes:
        return self._reader.output.value()

    @property
    def output_dropped(self) -> int:
        return self._reader.output.dropped

    async def ready(self) -> None:
        """Wait until the world inside is built; afterwards `init_pid` is the process that dies last."""
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                greeting = await asyncio.get_running_loop().sock_recv(self._control, 64)
                if not greeting:
                    await self._reader.ended.wait()
        except TimeoutError as error:
            raise SandboxError(f"the sandbox was not ready after {START_DEADLINE_S:.0f} s") from error
        except ConnectionError:
            greeting = b""
        if not greeting:
            raise SandboxError(f"the sandbox did not start: {_last_line(self.output)}")
        self._adopt_init()

    def _adopt_init(self) -> None:
        """The launcher waits for process 1, so its number cannot have been given to another one."""
        if self._info is None or self._init is not None:
            return
        try:
            self.init_pid = json.loads(os.read(self._info, 4096))["child-pid"]
            self._init = os.pidfd_open(self.init_pid)
        except (BlockingIOError, ValueError, ProcessLookupError):
            return

    async def release(self) -> None:
        """Let the program begin."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._control, b"go\n")
        except ConnectionError as error:
            raise SandboxError(f"the sandbox died before its program began: {_last_line(self.output)}") from error

    async def wait(self) -> int:
        """The program's exit code, above 128 for a signal, as a shell gives it."""
        await readable(self._launcher)
        return self._code()

    def _code(self) -> int:
        code = self._popen.wait()
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        """SIGKILL for every process of the tree; on return all are dead and the output is complete."""
        if self.is_dead:
            return
        self._control.close()
        try:
            async with asyncio.timeout(KILL_DEADLINE_S):
                await self._kill()
        except TimeoutError as error:
            _send_kill(self._launcher)
            raise SandboxError(f"process {self.init_pid} was not dead after {KILL_DEADLINE_S:.0f} s") from error
        finally:
            self._close()
        self.is_dead = True

    async def _kill(self) -> None:
        self._adopt_init()
        if self._init is not None:
            _send_kill(self._init)
            await readable(self._init)
        if self._info is not None:
            _send_kill(self._launcher)
        await readable(self._launcher)
        self._code()
        try:
            async with asyncio.timeout(_DRAIN_DEADLINE_S):
                await self._reader.ended.wait()
        except TimeoutError:
            self._reader.close()

    def _close(self) -> None:
        self._reader.close()
        for descriptor in (self._launcher, self._init, self._info):
            if descriptor is not None:
                os.close(descriptor)
        self._init = self._info = None


def _send_kill(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


async def run_tool(*argv: str, deadline_s: float) -> bytes:
    """What a trusted system tool prints. Raises SandboxError with its complaint, or after the deadline."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise SandboxError(f"cannot run {argv[0]}: {error}") from error
    try:
        async with asyncio.timeout(deadline_s):
            answer, complaint = await process.communicate()
    except TimeoutError as error:
        raise SandboxError(f"{argv[0]} took longer than {deadline_s:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):
                await to_its_end(asyncio.wait_for(process.wait(), _DRAIN_DEADLINE_S))
    if process.returncode:
        raise SandboxError(f"{argv[0]} failed: {_last_line(complaint)}")
    return answer
