"""Watches that one sandbox does not fill the disk: quotas are not to be had everywhere, so its files are measured."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from openforgerl.errors import SandboxError
from openforgerl.runtimes.process_tree import run_tool

_PERIOD_S = 1.0
_MEASURE_DEADLINE_S = 60.0


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


async def used_bytes(folder: Path) -> int:
    """What a tree takes on its disk."""
    answer = await run_tool("du", "-sx", "--block-size=1", "--", str(folder), deadline_s=_MEASURE_DEADLINE_S)
    return int(answer.split()[0])


async def above_limit(folder: Path, limit_bytes: int) -> None:
    """Returns once the tree takes more than the limit; looks only while the disk's free space shrinks."""
    at_start = _free_bytes(folder)
    while True:
        await asyncio.sleep(_PERIOD_S)
        try:
            if at_start - _free_bytes(folder) < limit_bytes // 2:
                continue
            if await used_bytes(folder) > limit_bytes:
                return
        except (SandboxError, OSError):
            continue
