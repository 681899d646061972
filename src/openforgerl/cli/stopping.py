"""SIGTERM ends a command as Ctrl-C does: what it owns is closed first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine

INTERRUPTED = 130
TERMINATED = 143
"""Exit codes, as a shell reports an end by SIGINT and by SIGTERM."""


async def until_terminated(work: Coroutine[object, object, int]) -> int:
    """The result of `work`, or TERMINATED once it is cancelled and has cleaned up."""
    terminated = asyncio.Event()
    task = asyncio.ensure_future(work)

    def terminate() -> None:
        terminated.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated.is_set():
            return TERMINATED
        raise
