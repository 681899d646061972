"""OpenCode, unmodified, from npm: Chat Completions over SSE.

It asks for a title beside the first turn, and names the parent session of a sub-agent in a header.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.node import NodeProgram, instruction
from openforgerl.records import LaunchPlan, Task

_BINARY = f"opencode-linux-{'arm64' if platform.machine() == 'aarch64' else 'x64-baseline'}/bin/opencode"
_OFF = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")


class OpenCode:
    """Every tool is allowed: the sandbox is the border."""

    name = "opencode"
    version = "1.18.33"

    def __init__(self, config: HarnessConfig) -> None:
        if config.tools is not None:
            why = "OpenCode has no allow-list of tools; leave it out"
            raise HarnessError(f"[harness] tools = {list(config.tools)}: {why}")
        self._system_prompt = config.system_prompt
        self._program = NodeProgram(package="opencode-ai", version=self.version, start=_BINARY)

    def install(self, cache: Path) -> None:
        self._program.install(cache)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        return self._program.plan(
            cache,
            *("run", "--model", f"policy/{access.model}", instruction(task, self.name)),
            env={f"OPENCODE_DISABLE_{name}": "1" for name in _OFF},
            files={f"{HOME}/.config/opencode/opencode.json": self._settings(access)},
        )

    def _settings(self, access: ModelAccess) -> bytes:
        limits = {"context": access.context_length, "output": access.max_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "policy",
            "options": {"baseURL": f"{access.base_url}/v1", "apiKey": access.key},
            "models": {access.model: {"name": access.model, "limit": limits}},
        }
        settings: dict[str, object] = {
            "provider": {"policy": provider},
            "model": f"policy/{access.model}",
            "small_model": f"policy/{access.model}",
            "permission": {"*": "allow"},
            "share": "disabled",
        }
        if self._system_prompt is not None:
            settings["agent"] = {"build": {"prompt": self._system_prompt}}
        return json.dumps(settings).encode()
