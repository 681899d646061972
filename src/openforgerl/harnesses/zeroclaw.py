"""ZeroClaw: Chat Completions. NOT RUN HERE: written from its documentation of version 0.8.4, a program in no registry
that this project installs from. Put the `zeroclaw` binary on this machine and name its folder in ZEROCLAW_FOLDER.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.node import instruction
from openforgerl.records import LaunchPlan, Task

_FOLDER = f"{HOME}/.zeroclaw"


class ZeroClaw:
    """A Rust program that the user installed."""

    name = "zeroclaw"
    version = "0.8.4"

    def __init__(self, config: HarnessConfig) -> None:
        for field, value in (("system_prompt", config.system_prompt), ("tools", config.tools)):
            if value is not None:
                raise HarnessError(f"[harness] {field}: ZeroClaw has no flag for it; leave it out")

    def install(self, cache: Path) -> None:
        """Nothing is installed. Raises HarnessError where the binary is missing."""
        _program()

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        return LaunchPlan(
            argv=("/opt/zeroclaw/zeroclaw", "agent", "-a", "policy", "-m", instruction(task, self.name)),
            env={
                "HOME": HOME,
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "ZEROCLAW_CONFIG_DIR": _FOLDER,
                "ZEROCLAW_providers__models__custom__policy__api_key": access.key,
            },
            files={f"{_FOLDER}/config.toml": _settings(access)},
            mounts={"/opt/zeroclaw": _program().parent},
        )


def _program() -> Path:
    folder = os.environ.get("ZEROCLAW_FOLDER", "")
    if not folder or not (Path(folder) / "zeroclaw").is_file():
        raise HarnessError(
            f"ZEROCLAW_FOLDER = {folder!r} holds no zeroclaw: install it and name the folder of its binary"
        )
    return Path(folder) / "zeroclaw"


def _settings(access: ModelAccess) -> bytes:
    lines = (
        "[providers.models.custom.policy]",
        f"uri = {json.dumps(f'{access.base_url}/v1')}",
        f"model = {json.dumps(access.model)}",
        'wire_api = "chat_completions"',
        "[agents.policy]",
        'model_provider = "custom.policy"',
        "",
    )
    return "\n".join(lines).encode()
