"""A memory limit for one sandbox, where this machine lets us make a cgroup (version 1 or 2); else there is none."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_PROBE = "openforgerl.probe"


def _own_groups() -> Mapping[str, str]:
    """Controllers -> path of our own cgroup."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}


def _parents() -> list[tuple[Path, str, str]]:
    """Folders in which a memory cgroup may be made, with the names of its limit and of its event counter."""
    found = []
    for controllers, path in _own_groups().items():
        if "memory" in controllers.split(","):
            folder = _MOUNT / controllers / path.lstrip("/")
            found.append((folder, "memory.limit_in_bytes", "memory.oom_control"))
        elif controllers == "":
            found.append((_MOUNT / path.lstrip("/"), "memory.max", "memory.events"))
    return found


class MemoryGroup:
    """A cgroup with a limit. Processes join by writing themselves into `procs`."""

    def __init__(self, folder: Path, events: str) -> None:
        self._folder = folder
        self._events = folder / events
        self.procs = folder / "cgroup.procs"

    @classmethod
    def make(cls, name: str, memory_bytes: int) -> MemoryGroup | None:
        """None where no memory cgroup can be made."""
        for parent, limit, events in _parents():
            folder = parent / name
            try:
                folder.mkdir(exist_ok=True)
                (folder / limit).write_text(str(memory_bytes))
            except OSError:
                _remove(folder)
                continue
            return cls(folder, events)
        return None

    def kills(self) -> int:
        """Processes that the limit has killed so far."""
        for line in self._events.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return 0

    def discard(self) -> None:
        """Remove a group that nothing joined."""
        _remove(self._folder)

    async def remove(self) -> bool:
        """The kernel lets go of a cgroup a moment after its last process; false where it keeps it (a live one)."""
        for _ in range(50):
            if _remove(self._folder):
                return True
            await asyncio.sleep(0.02)
        return False


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def group_name(root: Path, run_id: str, session_id: str) -> str:
    """Distinct for each folder of sandboxes, so that a sweep never takes another one's."""
    return f"openforgerl.{hashlib.sha256(bytes(root)).hexdigest()[:8]}.{run_id}.{session_id}"


def probe_name() -> str:
    """Of a group that only shows whether one can be made; it names its maker."""
    return f"{_PROBE}.{os.getpid()}.{secrets.token_hex(4)}"


def dead_probes() -> list[MemoryGroup]:
    """Probes whose maker was killed before it could remove them."""
    return [
        MemoryGroup(folder, events)
        for parent, _, events in _parents()
        for folder in sorted(parent.glob(f"{_PROBE}.*"))
        if not Path("/proc", folder.name.split(".")[2]).exists()
    ]


def abandoned(root: Path, run_id: str) -> list[MemoryGroup]:
    """Groups of a run whose sandbox has no folder any more."""
    return [
        MemoryGroup(folder, events)
        for parent, _, events in _parents()
        for folder in sorted(parent.glob(group_name(root, run_id, "*")))
        if not (root / run_id / folder.name.rpartition(".")[2]).exists()
    ]
