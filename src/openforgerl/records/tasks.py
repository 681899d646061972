"""Beside the flow: tasks, and how to start a program in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openforgerl.records.ids import check_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A Harbor task folder, read."""

    task_id: str
    instruction: str
    folder: Path
    tests: Path
    """Folder with test.sh; the agent never sees it."""
    workspace: Path | None
    """Folder with the initial files of the workspace."""
    agent_timeout_s: float
    grader_timeout_s: float
    reward_range: tuple[float, float] = (0.0, 1.0)
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id("task_id", self.task_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How to start one program in a sandbox. Secrets go into `env` or `files`, never into argv."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment; nothing is inherited."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Absolute path in the sandbox -> content, written before the start, owned by the user that runs."""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Absolute path in the sandbox -> folder of this machine, read-only."""
    deadline_s: float = 600.0
    output_cap_bytes: int = 1_000_000
