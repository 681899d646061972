"""Watches that one sandbox does not fill the disk: quotas are not to be had everywhere, so its files are measured."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from openforgerl.errors import SandboxError
from openforgerl.runtimes.base import RuntimeLimits
from openforgerl.runtimes.process_tree import run_tool

_PERIOD_S = 1.0
_MEASURE_DEADLINE_S = 60.0


def _free(folder: Path) -> tuple[int, int]:
    """Bytes and files that the disk still has room for."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_favail


async def _used(folder: Path, *unit: str) -> int:
    answer = await run_tool("du", "-sx", *unit, "--", str(folder), deadline_s=_MEASURE_DEADLINE_S)
    return int(answer.split()[0])


async def above_limit(folder: Path, limits: RuntimeLimits) -> None:
    """Returns once the tree holds more than it may; measures it only while the disk's free room shrinks."""
    bytes_at_start, files_at_start = _free(folder)
    while True:
        await asyncio.sleep(_PERIOD_S)
        try:
            free_bytes, free_files = _free(folder)
            shrunk = bytes_at_start - free_bytes > limits.disk_bytes // 2
            if shrunk and await _used(folder, "--block-size=1") > limits.disk_bytes:
                return
            crowded = files_at_start - free_files > limits.files // 2
            if crowded and await _used(folder, "--inodes") > limits.files:
                return
        except (SandboxError, OSError):
            continue
