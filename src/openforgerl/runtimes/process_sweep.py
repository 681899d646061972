"""What a crash left of a run: folders without an owner, processes with our mark, cgroups; never by a program's name."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from openforgerl.errors import SandboxError
from openforgerl.runtimes.process_cgroup import abandoned, dead_probes
from openforgerl.runtimes.process_folder import dead_sandboxes, garbage, remove_tree

MARK = "OPENFORGERL_SANDBOX"
"""In the environment of every process that owns a sandbox's tree: "<run id>/<session id>"."""
_KILL_DEADLINE_S = 5.0
_GARBAGE_DEADLINE_S = 600.0


async def sweep(root: Path, run_id: str) -> int:
    """Remove what is left of a run's dead sandboxes; the number of processes, folders and cgroups removed."""
    claims = dead_sandboxes(root, run_id)
    count = 0
    for folder in claims:
        count += await kill_marked(f"{run_id}/{folder.path.name}") + 1
        await folder.remove()
    for path in garbage(root, run_id):
        await remove_tree(path, deadline_s=_GARBAGE_DEADLINE_S)
        count += 1
    for group in (*abandoned(root, run_id), *dead_probes()):
        count += await group.remove()
    return count


async def kill_marked(mark: str) -> int:
    """SIGKILL every process that carries this mark, until none does. Raises SandboxError after a deadline."""
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while left := _marked(mark):
        if time.monotonic() > deadline:
            raise SandboxError(f"processes of {mark} outlive SIGKILL: {sorted(left)}")
        killed |= {pid for pid in left if _kill(pid, mark)}
        await asyncio.sleep(0.02)
    return len(killed)


def _marked(mark: str) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _carries(int(name), mark)]


def _carries(pid: int, mark: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables


def _kill(pid: int, mark: str) -> bool:
    """Through a pidfd that is checked again, so that a number given to another process is spared."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _carries(pid, mark):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
