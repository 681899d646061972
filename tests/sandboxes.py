"""What tests of runtimes share: a runtime with user ids of its own, and what it left on this machine."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openforgerl.records import LaunchPlan
from openforgerl.runtimes.base import RunEnd, RuntimeLimits, Sandbox, SandboxSpec
from openforgerl.runtimes.process import ProcessRuntime, ProcessRuntimeConfig
from openforgerl.runtimes.process_sweep import MARK

AS_ROOT = os.getuid() == 0
RUN_ID = f"run-{os.getpid()}"
"""Of this test process: others may run beside it."""
FIND = r"find / \( -path /proc -o -path /usr -o -path /etc \) -prune -o"
"""Shell: all that a sandbox can see beside the system; a test goes on with what it looks for and -print."""
_SLOT_IDS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A runtime under test, and the traces by which its processes are known."""

    runtime: ProcessRuntime
    root: Path
    first_uid: int

    @classmethod
    def make(cls, folder: Path, *, unsafe: bool = False, **limits: int) -> Machine:
        root = folder / "sandboxes"
        first_uid = random.randrange(10**6, 2 * 10**9, _SLOT_IDS)
        config = ProcessRuntimeConfig(
            unsafe=unsafe, root=root, limits=RuntimeLimits(**limits), first_uid=first_uid
        )  # fmt: skip
        return cls(runtime=ProcessRuntime(config), root=root, first_uid=first_uid)

    def processes(self, session_id: str = "") -> list[int]:
        """Live processes of this runtime's sandboxes: by user id, or by the mark of their owner."""
        mark = f"{MARK}={RUN_ID}/{session_id}".encode()
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and self._is_ours(name, mark)]

    def _is_ours(self, pid: str, mark: bytes) -> bool:
        try:
            uid = os.stat(f"/proc/{pid}").st_uid
            if self.first_uid <= uid < self.first_uid + _SLOT_IDS:
                return True
            return any(item.startswith(mark) for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        except OSError:
            return False

    def proc_files(self, name: str) -> dict[int, bytes]:
        """/proc/<pid>/<name> of each live process of the sandboxes."""
        return {pid: Path(f"/proc/{pid}/{name}").read_bytes() for pid in self.processes()}

    def files_with(self, text: str) -> list[str]:
        """Files of this machine under the root of the sandboxes that hold this text."""
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return [str(path) for path in paths if text in path.read_text(errors="replace")]

    def leftovers(self) -> list[str]:
        """Processes, folders, mounts and cgroups that should be gone."""
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.root) in line]
        known = {".lock", ".users", ".gone"}
        folders = [str(path) for path in self.root.rglob("*") if path.name not in known]
        groups = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"openforgerl.*.{RUN_ID}.*")]
        return [*map(str, self.processes()), *mounts, *folders, *groups]


def spec(session_id: str = "session-1", **fields: Any) -> SandboxSpec:
    return SandboxSpec(run_id=RUN_ID, session_id=session_id, **fields)


def bash(script: str, **fields: Any) -> LaunchPlan:
    return LaunchPlan(argv=("/bin/bash", "-c", script), **{"deadline_s": 20.0, **fields})


async def run(box: Sandbox, script: str, *, user: Literal["agent", "grader"] = "agent", **fields: Any) -> RunEnd:
    return await box.run(bash(script, **fields), user=user)


def connect(box: Sandbox) -> str:
    """Shell: open the way to the proxy as descriptor 9."""
    host, port = box.proxy_url.removeprefix("http://").split(":")
    return f"exec 9<>/dev/tcp/{host}/{port}"


async def said(box: Sandbox, script: str, **fields: Any) -> str:
    return (await run(box, script, **fields)).output.decode(errors="replace").strip()


@dataclass(slots=True)
class EchoProxy:
    """Stands for the proxy: answers each connection with "proxy:" and what was sent, after the sender's end."""

    address: tuple[str, int]
    connected: asyncio.Event
    connections: int = 0


@asynccontextmanager
async def echo_proxy() -> AsyncIterator[EchoProxy]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.connections += 1
        proxy.connected.set()
        sent = await reader.read()
        writer.write(b"proxy:" + sent)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = EchoProxy(address=server.sockets[0].getsockname(), connected=asyncio.Event())
    async with server:
        yield proxy
