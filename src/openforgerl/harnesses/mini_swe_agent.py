"""mini-swe-agent, unmodified, from PyPI in an environment of its own: Chat Completions, unstreamed."""

from __future__ import annotations

import os
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.installing import pip_install
from openforgerl.records import LaunchPlan, Task


class MiniSweAgent:
    """Its environment is mounted at the path where it was built, since a virtual environment cannot be moved."""

    name = "mini-swe-agent"
    version = "2.4.6"

    def __init__(self, config: HarnessConfig) -> None:
        if config.tools is not None and set(config.tools) != {"bash"}:
            raise HarnessError(f"[harness] tools = {list(config.tools)}: mini-swe-agent has one tool, bash")
        self._system_prompt = config.system_prompt

    def install(self, cache: Path) -> None:
        pip_install(cache, self.name, self.version)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        environment = pip_install(cache, self.name, self.version)
        return LaunchPlan(
            argv=(
                *(f"{environment}/bin/mini", "-m", f"openai/{access.model}", "-t", task.instruction),
                *("-y", "--exit-immediately"),
                *self._system(),
            ),
            env={
                "HOME": HOME,
                "PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "OPENAI_API_BASE": f"{access.base_url}/v1",
                "OPENAI_API_KEY": access.key,
            },
            mounts={str(folder): folder for folder in (environment, *_interpreter(environment))},
        )

    def _system(self) -> tuple[str, ...]:
        """Its default config, with another system text; that text is a Jinja template there."""
        if self._system_prompt is None:
            return ()
        return ("-c", "mini.yaml", "-c", f"agent.system_template={self._system_prompt}")


def _interpreter(environment: Path) -> tuple[Path, ...]:
    """The installation that the environment's python links to, where a sandbox does not have it anyway."""
    home = Path(os.path.realpath(environment / "bin" / "python")).parent.parent
    return () if home.is_relative_to("/usr") else (home,)
