"""The scripted teacher: plays each task's own solution through the harness, as a policy that knows it would."""

from __future__ import annotations

import json
from collections.abc import Mapping

from openforgerl.errors import TaskError
from openforgerl.records import GenerateRequest, Task
from openforgerl.tokens.codec import Codec

_IGNORED = ("#", "cd /workspace")
_DONE = "Done."


def solution_command(task: Task) -> str:
    """The command lines of solution/solve.sh, without its frame. Raises TaskError where there is none."""
    file = task.folder / "solution" / "solve.sh"
    if not file.is_file():
        raise TaskError(f"{file} is missing: the scripted teacher plays a task's own solution")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return "\n".join(line for line in lines if not line.startswith(_IGNORED))


class Teacher:
    """A script for the scripted engine: one bash call with the solution, then a closing word."""

    def __init__(self, codec: Codec, tasks: Mapping[str, Task]) -> None:
        self._codec = codec
        self._tasks = tasks
        """By rollout id."""

    def __call__(self, request: GenerateRequest) -> str:
        if "<tool_response>" in self._codec.decode(request.prompt_ids):
            return _DONE
        rollout_id = request.session_id.rsplit("-a", 1)[0]
        command = solution_command(self._tasks[rollout_id])
        call = json.dumps({"name": "bash", "arguments": {"command": command}}, ensure_ascii=False)
        return f"<tool_call>{call}</tool_call>"
