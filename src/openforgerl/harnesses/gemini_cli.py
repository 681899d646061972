"""Gemini CLI, unmodified, from npm: streamGenerateContent over SSE.

It drops thoughts from its history, keeps the signature of a turn's first part, signs a first call that has none with a
word of its own, prints numbers as JavaScript does, and asks again where an answer breaks off with an error.
"""

from __future__ import annotations

import json
from pathlib import Path

from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.node import NodeProgram, instruction
from openforgerl.records import LaunchPlan, Task

_SYSTEM = f"{HOME}/.gemini/system.md"


class GeminiCli:
    """Every tool is approved: the sandbox is the border."""

    name = "gemini-cli"
    version = "0.61.0"

    def __init__(self, config: HarnessConfig) -> None:
        self._config = config
        self._program = NodeProgram(
            package="@google/gemini-cli", version=self.version, start="@google/gemini-cli/bundle/gemini.js"
        )

    def install(self, cache: Path) -> None:
        self._program.install(cache)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        env = {
            "GEMINI_API_KEY": access.key,
            "GOOGLE_GEMINI_BASE_URL": access.base_url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        files = {f"{HOME}/.gemini/settings.json": self._settings()}
        if self._config.system_prompt is not None:
            env["GEMINI_SYSTEM_MD"] = _SYSTEM
            files[_SYSTEM] = self._config.system_prompt.encode()
        args = ("-m", access.model, "--yolo", "-p", instruction(task, self.name))
        return self._program.plan(cache, *args, env=env, files=files)

    def _settings(self) -> bytes:
        settings: dict[str, object] = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"disableAutoUpdate": True},
        }
        if self._config.tools is not None:
            settings["tools"] = {"core": list(self._config.tools)}
        return json.dumps(settings).encode()
