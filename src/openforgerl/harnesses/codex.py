"""Codex, unmodified, from npm: OpenAI Responses over SSE.

An answer that is cut by length ends its run at once, so give it enough `max_tokens`. Near the end of the context it
makes one call without tools for a summary and starts anew from it.
"""

from __future__ import annotations

import json
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.node import NodeProgram, instruction
from openforgerl.records import LaunchPlan, Task

_HOME = f"{HOME}/.codex"


class Codex:
    """Its own sandbox and approvals are off: ours is the border."""

    name = "codex"
    version = "0.171.0"

    def __init__(self, config: HarnessConfig) -> None:
        if config.tools is not None:
            raise HarnessError(
                f"[harness] tools = {list(config.tools)}: Codex has no allow-list of tools; leave it out"
            )
        self._system_prompt = config.system_prompt
        self._program = NodeProgram(package="@openai/codex", version=self.version, start="@openai/codex/bin/codex.js")

    def install(self, cache: Path) -> None:
        self._program.install(cache)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        files = {f"{_HOME}/config.toml": self._settings(access)}
        if self._system_prompt is not None:
            files[f"{_HOME}/instructions.md"] = self._system_prompt.encode()
        return self._program.plan(
            cache,
            *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"),
            instruction(task, self.name),
            env={"CODEX_HOME": _HOME, "POLICY_KEY": access.key},
            files=files,
        )

    def _settings(self, access: ModelAccess) -> bytes:
        lines = [
            f"model = {json.dumps(access.model)}",
            'model_provider = "policy"',
            f"model_context_window = {access.context_length}",
            f"model_auto_compact_token_limit = {access.context_length - 2 * access.max_tokens}",
        ]
        if self._system_prompt is not None:
            lines.append(f'model_instructions_file = "{_HOME}/instructions.md"')
        lines += [
            "[model_providers.policy]",
            'name = "policy"',
            f"base_url = {json.dumps(f'{access.base_url}/v1')}",
            'env_key = "POLICY_KEY"',
            'wire_api = "responses"',
        ]
        return "\n".join((*lines, "")).encode()
