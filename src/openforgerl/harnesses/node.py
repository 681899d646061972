"""What harnesses from npm share: Node and the pinned package, both mounted read-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HOME
from openforgerl.harnesses.installing import node_folder, npm_install
from openforgerl.records import LaunchPlan, Task

BIN = "/opt/node/bin:/usr/local/bin:/usr/bin:/bin"
"""The agent's PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgram:
    """An npm package that is pinned, and what in it starts: a script for Node, or a program."""

    package: str
    version: str
    start: str
    """Path below `node_modules`."""

    def install(self, cache: Path) -> None:
        npm_install(cache, self.package, self.version)

    def plan(self, cache: Path, *args: str, env: Mapping[str, str], files: Mapping[str, bytes]) -> LaunchPlan:
        """`env` goes on top of HOME, PATH and LANG."""
        start = f"/opt/harness/node_modules/{self.start}"
        is_script = start.endswith("js")
        return LaunchPlan(
            argv=(*(("/opt/node/bin/node",) if is_script else ()), start, *args),
            env={"HOME": HOME, "PATH": BIN, "LANG": "C.UTF-8", **env},
            files=files,
            mounts={
                "/opt/node": node_folder(cache),
                "/opt/harness": npm_install(cache, self.package, self.version),
            },
        )


def instruction(task: Task, harness: str, *marks: str) -> str:
    """The task's text as an argument. Raises HarnessError where it begins with one of `marks`: it would be a flag."""
    if task.instruction.startswith(("-", *marks)):
        shown = " or ".join(("-", *marks))
        raise HarnessError(
            f"task {task.task_id}: {harness} would read an instruction that begins with {shown} as a flag"
        )
    return task.instruction
