"""Harbor's grading: the task's own tests/test.sh leaves a number in /logs/verifier/reward.json or reward.txt.

Law 4: only a finite number in the task's range is a reward; everything else has a named reason and is never a 0.
"""

from __future__ import annotations

import json
import math

from openforgerl.records import Grade, LaunchPlan, Task
from openforgerl.runtimes.base import EndCause, RunEnd, Sandbox

_TESTS = "/tests"
_LOGS = "/logs/verifier"
_FILE_CAP = 65_536
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/grader", "LANG": "C.UTF-8"}


class TestsGrader:
    """Runs test.sh as the grader, in the workspace, from a read-only mount of the task's tests."""

    __test__ = False
    """pytest takes classes of this name for its own."""
    name = "tests"

    async def grade(self, task: Task, sandbox: Sandbox) -> Grade:
        """Raises SandboxError on infrastructure."""
        script = task.tests / "test.sh"
        if not script.is_file():
            return _no_grade(f"no grader: {script} is missing")
        plan = LaunchPlan(
            argv=("/bin/bash", f"{_TESTS}/{script.name}"), env=_ENV, mounts={_TESTS: task.tests},
            deadline_s=task.grader_timeout_s, output_cap_bytes=_FILE_CAP,
        )  # fmt: skip
        end = await sandbox.run(plan, user="grader")
        if end.cause is EndCause.DEADLINE:
            return _no_grade(f"grader_timeout: test.sh ran longer than {task.grader_timeout_s:g} s")
        return await _read(task, sandbox, end)


async def _read(task: Task, sandbox: Sandbox, end: RunEnd) -> Grade:
    """In Harbor's order: reward.json, then reward.txt; the exit code of test.sh says nothing."""
    for name, parse in (("reward.json", _from_json), ("reward.txt", _from_text)):
        content = await sandbox.get(f"{_LOGS}/{name}", cap_bytes=_FILE_CAP)
        if content is None:
            continue
        try:
            reward = parse(content)
        except (ValueError, OverflowError) as error:
            return _no_grade(f"{name} holds no reward: {error}")
        return _in_range(name, reward, task.reward_range)
    return _no_grade(f"no reward file: test.sh {_how_it_ended(end)}")


def _from_text(content: bytes) -> float:
    text = content.decode()
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{_short(text)} is not a number") from error


def _from_json(content: bytes) -> float:
    """A number, or an object of named numbers: the one called "reward", else the only one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_short(content.decode(errors='replace'))} is not JSON") from error
    rewards = value if isinstance(value, dict) else {"reward": value}
    for name, number in rewards.items():
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"{name} = {_short(number)} is not a finite number")
    if "reward" not in rewards and len(rewards) != 1:
        raise ValueError(f'it names {_short(sorted(rewards))} and no "reward"')
    return float(rewards["reward"] if "reward" in rewards else next(iter(rewards.values())))


def _in_range(name: str, reward: float, bounds: tuple[float, float]) -> Grade:
    low, high = bounds
    if not math.isfinite(reward) or not low <= reward <= high:
        return _no_grade(f"{name} holds {reward}, which is outside of [{low:g}, {high:g}]")
    return Grade(kind="reward", reward=reward)


def _no_grade(reason: str) -> Grade:
    return Grade(kind="grader_error", reason=reason)


def _how_it_ended(end: RunEnd) -> str:
    how = f"was killed by signal {end.signal}" if end.signal else f"exited with {end.exit_code}"
    if end.cause is EndCause.OOM:
        how = "ran out of memory"
    lines = end.output.decode(errors="replace").strip().splitlines()
    return f"{how}, its last line: {_short(lines[-1])}" if lines else how


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
