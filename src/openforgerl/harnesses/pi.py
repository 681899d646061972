"""The pi coding agent, unmodified, from npm: Chat Completions over SSE.

pi ends on an answer without a tool call, has no turn cap and no timeout for a command, and exits 0 after most
failures; deadline and call cap are the rollout's. It writes nothing into the workspace.
"""

from __future__ import annotations

import json
from pathlib import Path

from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.node import NodeProgram, instruction
from openforgerl.records import LaunchPlan, Task

_PACKAGE = "@mariozechner/pi-coding-agent"
_OFF = ("session", "skills", "context-files", "extensions", "prompt-templates", "themes")


class Pi:
    """Node and pi are mounted read-only; the provider file carries the session's URL and key."""

    name = "pi"
    version = "0.73.1"

    def __init__(self, config: HarnessConfig) -> None:
        self._config = config
        self._program = NodeProgram(package=_PACKAGE, version=self.version, start=f"{_PACKAGE}/dist/cli.js")

    def install(self, cache: Path) -> None:
        self._program.install(cache)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        return self._program.plan(
            cache,
            *self._flags(),
            instruction(task, self.name, "@"),
            env={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
            files={
                f"{HOME}/.pi/agent/models.json": _provider(access),
                f"{HOME}/.pi/agent/settings.json": _settings(access),
            },
        )

    def _flags(self) -> tuple[str, ...]:
        flags = ["-p", "--provider", "policy", "--model", "policy", "--thinking", "off"]
        flags += [f"--no-{part}" for part in _OFF]
        if self._config.tools is not None:
            flags += ["--tools", ",".join(self._config.tools)]
        if self._config.system_prompt is not None:
            flags += ["--system-prompt", self._config.system_prompt]
        return tuple(flags)


def _provider(access: ModelAccess) -> bytes:
    model = {"id": "policy", "contextWindow": access.context_length, "maxTokens": access.max_tokens}
    provider = {
        "baseUrl": f"{access.base_url}/v1",
        "api": "openai-completions",
        "apiKey": access.key,
        "models": [model],
    }
    return json.dumps({"providers": {"policy": provider}}).encode()


def _settings(access: ModelAccess) -> bytes:
    """pi keeps 16,384 tokens free by default: with a smaller context it would summarise after every answer."""
    compaction = {"enabled": True, "reserveTokens": access.max_tokens, "keepRecentTokens": access.context_length // 4}
    return json.dumps({"compaction": compaction}).encode()
