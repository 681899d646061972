"""What a run that works in one folder has left on this machine: processes, mounts, cgroups, temporary files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from openforgerl.runtimes.process_cgroup import group_name

_OWN = {".lock", ".users", ".gone"}
"""What the root of sandboxes keeps."""


def processes(folder: Path) -> list[str]:
    """Live processes, but this one, that name the folder in command line, environment or working folder, or that see
    a mount of it, as those inside a sandbox do."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _belongs(entry, folder):
            found.append(f"{entry.name} {_read(entry / 'cmdline').replace(chr(0), ' ')[:200]}")
    return found


def _belongs(process: Path, folder: Path) -> bool:
    try:
        cwd = os.readlink(process / "cwd")
    except OSError:
        cwd = ""
    named = str(folder) in _read(process / "cmdline") + _read(process / "environ") or cwd.startswith(str(folder))
    return named or _mounted(process, folder)


def _mounted(process: Path, folder: Path) -> bool:
    """Whether it sees a mount at the folder, or of it: mountinfo tells the origin as a path on its file system."""
    base = next(place for place in folder.parents if place.is_mount())
    mounts = _read(process / "mountinfo")
    return str(folder) in mounts or f"/{folder.relative_to(base)}" in mounts


def _read(file: Path) -> str:
    """Empty for a process that has ended."""
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def outlasting(folder: Path, deadline_s: float = 5.0) -> list[str]:
    """Processes that are there longer than the kernel needs to end a tree."""
    ends = time.monotonic() + deadline_s
    while (left := processes(folder)) and time.monotonic() < ends:
        time.sleep(0.02)
    return left


def leftovers(folder: Path, boxes: Path, temporary: Path) -> list[str]:
    """Everything that should be gone once a run has ended: its sandboxes lived in `boxes`."""
    found = outlasting(folder)
    if _mounted(Path("/proc/self"), folder):
        found.append(f"a mount of {folder}")
    found += [str(path) for path in boxes.rglob("*") if path.name not in _OWN]
    found += [str(path) for path in temporary.rglob("*")]
    found += [str(path) for path in folder.rglob("*") if path.name.startswith((".writing-", ".old-"))]
    found += [str(path) for path in folder.rglob("*.tmp")]
    return found + [str(path) for path in Path("/sys/fs/cgroup").rglob(group_name(boxes, "*", "*"))]
