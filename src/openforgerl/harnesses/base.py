"""What one must know to start a real harness, as data: Task -> LaunchPlan. Starts nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from openforgerl.records import LaunchPlan, Task

HOME = "/home/agent"
"""The agent's home inside every sandbox."""


class HarnessConfig(BaseModel):
    """[harness]: which program the policy lives in, and the few switches that its own flags offer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "pi"
    """A member (pi, claude-code, codex, ...: docs/harnesses.md), or `package.module:Class` of the user's own."""
    system_prompt: str | None = None
    """Replaces the harness's own system prompt where it has a flag for that."""
    tools: tuple[str, ...] | None = None
    """Allow-list of the harness's tools, by its own names."""


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
    """A family member: a pinned program and its launch description, made from a HarnessConfig."""

    name: str
    version: str

    def install(self, cache: Path) -> None:
        """Make the pinned version runnable under `cache`, once; a second call is quick. Raises HarnessError."""
        ...

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        """The launch of one attempt; its deadline is the caller's to set."""
        ...
