"""Claude Code, unmodified, from npm: Anthropic Messages over SSE.

It shows its sub-agents by a header, trims tool results and adds reminders to them, and compacts its context by itself.
Its small and fast model slots all name the policy, so that every call is answered and recorded.
"""

from __future__ import annotations

from pathlib import Path

from openforgerl.harnesses.base import HarnessConfig, ModelAccess
from openforgerl.harnesses.node import NodeProgram, instruction
from openforgerl.records import LaunchPlan, Task

_SLOTS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)


class ClaudeCode:
    """All permissions are given: the sandbox is the border."""

    name = "claude-code"
    version = "2.1.332"

    def __init__(self, config: HarnessConfig) -> None:
        self._config = config
        self._program = NodeProgram(
            package="@anthropic-ai/claude-code", version=self.version, start="@anthropic-ai/claude-code/cli-wrapper.cjs"
        )

    def install(self, cache: Path) -> None:
        self._program.install(cache)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        env = {
            "ANTHROPIC_BASE_URL": access.base_url,
            "ANTHROPIC_AUTH_TOKEN": access.key,
            **dict.fromkeys(_SLOTS, access.model),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(access.max_tokens),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "IS_SANDBOX": "1",
        }
        args = ("-p", instruction(task, self.name), "--dangerously-skip-permissions", *self._flags())
        return self._program.plan(cache, *args, "--output-format", "stream-json", "--verbose", env=env, files={})

    def _flags(self) -> tuple[str, ...]:
        flags: list[str] = []
        if self._config.tools is not None:
            flags += ["--tools", ",".join(self._config.tools)]
        if self._config.system_prompt is not None:
            flags += ["--system-prompt", self._config.system_prompt]
        return tuple(flags)
