"""What one must know to start a real harness, as data: Task -> LaunchPlan. Runs nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from openforgerl.records import LaunchPlan, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """How the agent reaches the policy. The key is a secret: env or files, never argv."""

    base_url: str
    """Of the session, without the dialect's own suffix: http://127.0.0.1:8000/s/<session id>."""
    key: str
    model: str
    context_length: int
    max_tokens: int
    """Most tokens of one answer."""


class Harness(Protocol):
    """A family member: a pinned program and its launch description."""

    name: str
    version: str
    options: Mapping[str, str]

    def install(self, cache: Path) -> None:
        """Make the pinned version runnable under `cache`, once; a second call is quick. Raises HarnessError."""
        ...

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        """The launch of one attempt. Raises HarnessError where it is not installed."""
        ...
