"""mini-swe-agent, real and unmodified, from its own big environment: it solves a task and submits."""

import json
from pathlib import Path

import pytest
from test_rollouts import ROOT, SHORT, requests, reward, scheduler

from openforgerl.errors import HarnessError
from openforgerl.harnesses.base import HarnessConfig
from openforgerl.harnesses.mini_swe_agent import MiniSweAgent
from openforgerl.records import EndedBy, GenerateRequest, Role, Task
from openforgerl.tasks.harbor import load_tasks
from openforgerl.tokens.codec import Codec
from openforgerl.trajectories import check_rows, rows
from openforgerl.workflows.teacher import solution_command

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Submitter:
    """Plays a task's solution, then what this harness takes for the end."""

    def __init__(self, codec: Codec, task: Task) -> None:
        self._codec, self._task = codec, task

    def __call__(self, request: GenerateRequest) -> str:
        solved = "<tool_response>" in self._codec.decode(request.prompt_ids)
        command = SUBMIT if solved else solution_command(self._task)
        return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"


@pytest.mark.real
async def test_it_solves_a_task_and_its_rows_keep_the_laws(tmp_path: Path) -> None:
    wanted = requests(load_tasks(ROOT / "examples/shell_tasks/train")[:1])
    harness = MiniSweAgent(SHORT)
    async with scheduler(tmp_path, harness, lambda codec: Submitter(codec, wanted[0].task)) as (many, store):
        (session,) = await many.collect(wanted)
        calls = store.calls(session.session_id)
        log = (tmp_path / "logs" / f"{session.session_id}.log").read_text()
    assert session.ending is not None
    assert session.ending.ended_by is EndedBy.FINISHED, log[-2000:]
    assert reward(session) == 1.0
    assert (calls[0].messages.new[0].role, calls[0].messages.new[0].text) == (Role.SYSTEM, SHORT.system_prompt)
    found = rows(calls)
    assert check_rows(calls, found) == ()
    assert len(found) == 1
    assert sum(found[0].loss_mask) == sum(len(call.sampled_ids) for call in calls)


def test_tools_that_it_does_not_have_are_refused() -> None:
    with pytest.raises(HarnessError, match="one tool, bash"):
        MiniSweAgent(HarnessConfig(tools=("bash", "edit")))
