"""Workspace + session -> a grade. A grader runs after the agent's last process is dead."""

from __future__ import annotations

from typing import Protocol

from openforgerl.records import Grade, Task
from openforgerl.runtimes.base import Sandbox


class Grader(Protocol):
    """A way to grade a finished attempt."""

    name: str

    async def grade(self, task: Task, sandbox: Sandbox) -> Grade:
        """A reward in the task's range, or the reason why there is none. Raises SandboxError on infrastructure."""
        ...
