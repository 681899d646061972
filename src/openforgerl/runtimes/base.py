"""What executes a LaunchPlan: one sandbox an attempt, the agent first, then the grader as another user."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from openforgerl.records import LaunchPlan, check_id

WORKSPACE = "/workspace"
"""Where the agent works and the grader looks, inside every sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """One attempt's world."""

    run_id: str
    session_id: str
    workspace: Path | None = None
    """Folder whose content the workspace starts with; None: empty."""
    proxy_address: tuple[str, int] | None = None
    """(host, port) of the proxy; the only thing that the agent can reach, at `Sandbox.proxy_url`. None: no network."""

    def __post_init__(self) -> None:
        check_id("run_id", self.run_id)
        check_id("session_id", self.session_id)


class EndCause(StrEnum):
    EXITED = "exited"
    """The program ended by itself; see exit_code or signal."""
    DEADLINE = "deadline"
    OOM = "oom"
    DISK = "disk"
    """The workspace grew above its limits."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a program ended; by then no process of it is left."""

    cause: EndCause
    exit_code: int | None
    signal: int | None
    output: bytes
    """stdout and stderr in the order of arrival, the middle cut out above the cap."""
    output_dropped: int
    """Bytes that were cut."""
    duration_s: float


class Sandbox(Protocol):
    """A live sandbox."""

    proxy_url: str
    """Base URL of the proxy as the agent sees it, e.g. http://127.0.0.1:8000; "" without network."""

    async def run(self, plan: LaunchPlan, *, user: Literal["agent", "grader"]) -> RunEnd:
        """Run to the end or the deadline; every process of the plan is dead on return. Raises SandboxError.

        The grader has no network, its own HOME, /tmp and /logs/verifier, and sees the workspace and its mounts.
        """
        ...

    async def get(self, path: str, *, cap_bytes: int = 1_000_000) -> bytes | None:
        """A regular file under /logs (the grader's) or the workspace, or None; never follows a link out of it."""
        ...


class Runtime(Protocol):
    """A way to make sandboxes."""

    isolation: str
    """One line for the user: what separates the agent from the machine."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Since it was made, e.g. removals_left: sandboxes whose files wait for the next sweep."""
        ...

    def sandbox(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Made on entry, gone without leftovers on exit. Raises SandboxError."""
        ...

    async def sweep(self, run_id: str) -> int:
        """Remove what a crash left of this run; the number of things removed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimits:
    """Limits of one sandbox."""

    memory_bytes: int = 4 << 30
    processes: int = 256
    file_bytes: int = 1 << 30
    """Of one file, and of all files together in each of HOME and /tmp."""
    disk_bytes: int = 4 << 30
    """Of all files in the workspace together."""
    files: int = 500_000
    """Number of files and folders in the workspace."""
