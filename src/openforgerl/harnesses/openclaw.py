"""OpenClaw, unmodified, from npm: Chat Completions over SSE.

Its history is not append-only: a message of internal context moves to the end on every call, and call ids lose their
punctuation. Such calls become branches that share their heads.
"""

from __future__ import annotations

import json
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.node import NodeProgram, instruction
from openforgerl.records import LaunchPlan, Task
from openforgerl.runtimes.base import WORKSPACE

_CONFIG = f"{HOME}/openclaw.json"


class OpenClaw:
    """Slow to start: half a minute and more before its first call."""

    name = "openclaw"
    version = "2026.9.6"

    def __init__(self, config: HarnessConfig) -> None:
        for field, value in (("system_prompt", config.system_prompt), ("tools", config.tools)):
            if value is not None:
                raise HarnessError(f"[harness] {field}: OpenClaw has no flag for it; leave it out")
        self._program = NodeProgram(package="openclaw", version=self.version, start="openclaw/openclaw.mjs")

    def install(self, cache: Path) -> None:
        self._program.install(cache)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        return self._program.plan(
            cache,
            *("agent", "exec", "--config", _CONFIG, "--cwd", WORKSPACE, "--model", f"policy/{access.model}", "--json"),
            instruction(task, self.name),
            env={},
            files={_CONFIG: _settings(access)},
        )


def _settings(access: ModelAccess) -> bytes:
    model = {
        "id": access.model,
        "name": access.model,
        "contextWindow": access.context_length,
        "maxTokens": access.max_tokens,
    }
    provider = {
        "baseUrl": f"{access.base_url}/v1",
        "apiKey": access.key,
        "api": "openai-completions",
        "models": [model],
    }
    settings = {
        "models": {"providers": {"policy": provider}},
        "agents": {"defaults": {"model": {"primary": f"policy/{access.model}"}}},
    }
    return json.dumps(settings).encode()
