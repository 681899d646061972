"""Qwen Code, unmodified, from npm: Chat Completions over SSE.

It trims reasoning in its history, and gives up on a stream that is cut.
"""

from __future__ import annotations

import json
from pathlib import Path

from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.node import NodeProgram, instruction
from openforgerl.records import LaunchPlan, Task

_SYSTEM = f"{HOME}/.qwen/system.md"


class QwenCode:
    """Every tool is approved: the sandbox is the border."""

    name = "qwen-code"
    version = "0.24.4"

    def __init__(self, config: HarnessConfig) -> None:
        self._config = config
        self._program = NodeProgram(
            package="@qwen-code/qwen-code", version=self.version, start="@qwen-code/qwen-code/cli.js"
        )

    def install(self, cache: Path) -> None:
        self._program.install(cache)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        env = {
            "OPENAI_API_KEY": access.key,
            "OPENAI_BASE_URL": f"{access.base_url}/v1",
            "OPENAI_MODEL": access.model,
        }
        files = {f"{HOME}/.qwen/settings.json": self._settings(access)}
        if self._config.system_prompt is not None:
            env["QWEN_SYSTEM_MD"] = _SYSTEM
            files[_SYSTEM] = self._config.system_prompt.encode()
        args = ("--auth-type", "openai", "--yolo", "-p", instruction(task, self.name))
        return self._program.plan(cache, *args, env=env, files=files)

    def _settings(self, access: ModelAccess) -> bytes:
        settings: dict[str, object] = {
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"disableAutoUpdate": True},
            "model": {"name": access.model},
        }
        if self._config.tools is not None:
            settings["tools"] = {"core": list(self._config.tools)}
        return json.dumps(settings).encode()
