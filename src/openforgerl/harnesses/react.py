"""`react`: a minimal harness of ours: one bash tool, until an answer without a call."""

from __future__ import annotations

import json
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.records import LaunchPlan, Task

_PROGRAM = Path(__file__).with_name("react_agent.py")
_PYTHON = Path("/usr/bin/python3")
_SYSTEM = "Solve the task with the bash tool, then answer in one short sentence."


class React:
    """Needs nothing but the system's python3."""

    name = "react"
    version = "1"

    def __init__(self, config: HarnessConfig) -> None:
        if config.tools is not None and set(config.tools) != {"bash"}:
            raise HarnessError(f"[harness] tools = {list(config.tools)}: react has one tool, bash")
        self._system = _SYSTEM if config.system_prompt is None else config.system_prompt

    def install(self, cache: Path) -> None:
        """Nothing to install. Raises HarnessError where /usr/bin/python3 is missing."""
        if not _PYTHON.exists():
            raise HarnessError(f"{_PYTHON} is missing: react runs on the system's Python, install the package python3")

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        settings = {
            "url": f"{access.base_url}/v1/chat/completions",
            "key": access.key,
            "model": access.model,
            "max_tokens": access.max_tokens,
            "system": self._system,
            "task": task.instruction,
        }
        return LaunchPlan(
            argv=(str(_PYTHON), "-I", f"{HOME}/react_agent.py", f"{HOME}/react.json"),
            env={"HOME": HOME, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            files={
                f"{HOME}/react_agent.py": _PROGRAM.read_bytes(),
                f"{HOME}/react.json": json.dumps(settings).encode(),
            },
        )
