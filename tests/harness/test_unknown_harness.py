"""A harness that this project knows nothing of: Continue's command line, unmodified, by a base URL and a key alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_matrix import assert_account_closes, encoded_anew

from harness_matrix import Member, play
from openforgerl.harnesses.base import HOME, HarnessConfig, ModelAccess
from openforgerl.harnesses.installing import node_folder, npm_pins
from openforgerl.records import EndedBy, LaunchPlan, Task

PINS = Path(__file__).parent / "continue"
START = "/opt/continue/node_modules/@continuedev/cli/dist/cn.js"


class Continue:
    """As a user of this project would write it."""

    name = "continue"
    version = "1.5.47"

    def __init__(self, config: HarnessConfig) -> None:
        pass

    def install(self, cache: Path) -> None:
        npm_pins(cache, "continue-cli", PINS)

    def plan(self, task: Task, access: ModelAccess, cache: Path) -> LaunchPlan:
        model = {
            "name": access.model,
            "provider": "openai",
            "model": access.model,
            "apiBase": f"{access.base_url}/v1",
            "apiKey": access.key,
            "capabilities": ["tool_use"],
            "contextLength": access.context_length,
        }
        settings = {"name": "policy", "version": "0.0.1", "schema": "v1", "models": [model]}
        return LaunchPlan(
            argv=("/opt/node/bin/node", START, "--config", f"{HOME}/config.yaml", "--auto", "-p", task.instruction),
            env={"HOME": HOME, "PATH": "/opt/node/bin:/usr/bin:/bin", "CONTINUE_TELEMETRY_ENABLED": "0"},
            files={f"{HOME}/config.yaml": json.dumps(settings).encode()},
            mounts={"/opt/node": node_folder(cache), "/opt/continue": npm_pins(cache, "continue-cli", PINS)},
        )


@pytest.mark.real
async def test_a_base_url_and_a_key_are_all_that_it_needs(tmp_path: Path) -> None:
    played = await play(tmp_path, Member(make=Continue, tool="Bash"))
    session = played.session
    assert session.ending is not None
    assert session.ending.ended_by is EndedBy.FINISHED, played.log[-3000:]
    assert session.grade is not None
    assert session.grade.reward == 1.0, played.log[-3000:]
    assert_account_closes(played)
    assert encoded_anew(played) == {}
