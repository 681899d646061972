"""Harbor's grading: what in the verifier's folder is a reward, and what has which reason for not being one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from openforgerl.graders import tests as graders
from openforgerl.records import Grade, LaunchPlan, Task
from openforgerl.runtimes.base import EndCause, RunEnd

ENDED = RunEnd(cause=EndCause.EXITED, exit_code=0, signal=None, output=b"", output_dropped=0, duration_s=0.1)


@dataclass(slots=True)
class RecordedSandbox:
    """Stands for a sandbox whose grader has left these files."""

    files: Mapping[str, bytes]
    end: RunEnd = ENDED
    proxy_url: str = ""
    plans: list[tuple[str, LaunchPlan]] = field(default_factory=list)

    async def run(self, plan: LaunchPlan, *, user: Literal["agent", "grader"]) -> RunEnd:
        self.plans.append((user, plan))
        return self.end

    async def get(self, path: str, *, cap_bytes: int = 1_000_000) -> bytes | None:
        content = self.files.get(path.removeprefix("/logs/verifier/"))
        return content if content is not None and len(content) <= cap_bytes else None


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "test.sh").touch()
    return Task(
        task_id="task", instruction="", folder=tmp_path, tests=tmp_path, workspace=None, agent_timeout_s=9,
        grader_timeout_s=7, reward_range=(0.0, 1.0),
    )  # fmt: skip


async def grade(task: Task, box: RecordedSandbox) -> Grade:
    return await graders.TestsGrader().grade(task, box)


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ({"reward.txt": b"1"}, 1.0),
        ({"reward.txt": b" 0.25\n"}, 0.25),
        ({"reward.txt": b"1e-3"}, 0.001),
        ({"reward.json": b"0.5"}, 0.5),
        ({"reward.json": b'{"reward": 0.5, "speed": 3}'}, 0.5),
        ({"reward.json": b'{"accuracy": 1}'}, 1.0),
        ({"reward.json": b'{"reward": 0.5}', "reward.txt": b"1"}, 0.5),
        ({"reward.json": b"true"}, 1.0),
    ],
)
async def test_a_finite_number_in_range_is_the_reward(files: dict[str, bytes], reward: float, task: Task) -> None:
    assert await grade(task, RecordedSandbox(files)) == Grade(kind="reward", reward=reward)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "no reward file"),
        ({"reward.txt": b"nan"}, "reward.txt holds nan"),
        ({"reward.txt": b"inf"}, "reward.txt holds inf"),
        ({"reward.txt": b"1.5"}, "1.5, which is outside of [0, 1]"),
        ({"reward.txt": b"-0.1"}, "-0.1, which is outside"),
        ({"reward.txt": b""}, "'' is not a number"),
        ({"reward.txt": b"passed"}, "'passed' is not a number"),
        ({"reward.txt": b"1 1"}, "'1 1' is not a number"),
        ({"reward.txt": b"\xff"}, "reward.txt holds no reward"),
        ({"reward.txt": b"9" * 5000}, "reward.txt holds"),
        ({"reward.txt": b"1" + b" " * 70_000}, "no reward file"),
        ({"reward.json": b"{"}, "'{' is not JSON"),
        ({"reward.json": b"[" * 5000}, "is not JSON"),
        ({"reward.json": b"\xff"}, "is not JSON"),
        ({"reward.json": b"NaN"}, "nan is not a finite number"),
        ({"reward.json": b"1e999"}, "inf is not a finite number"),
        ({"reward.json": b"1" + b"0" * 400}, "reward.json holds no reward"),
        ({"reward.json": b'"1"'}, "'1' is not a finite number"),
        ({"reward.json": b"null"}, "None is not a finite number"),
        ({"reward.json": b"[1]"}, "[1] is not a finite number"),
        ({"reward.json": b'{"reward": 1, "other": NaN}'}, "other = nan is not a finite number"),
        ({"reward.json": b'{"a": 1, "b": 0}'}, "['a', 'b']"),
        ({"reward.json": b"{}"}, 'no "reward"'),
        ({"reward.json": b'{"reward": 2}', "reward.txt": b"1"}, "2.0, which is outside"),
    ],
)
async def test_everything_else_is_a_grader_error_that_names_it(
    files: dict[str, bytes], reason: str, task: Task
) -> None:  # fmt: skip
    graded = await grade(task, RecordedSandbox(files))
    assert (graded.kind, graded.reward) == ("grader_error", None)
    assert reason in graded.reason
    assert len(graded.reason) < 200


async def test_a_grader_that_reaches_its_deadline_gives_no_grade_whatever_it_wrote(task: Task) -> None:
    end = RunEnd(cause=EndCause.DEADLINE, exit_code=None, signal=9, output=b"", output_dropped=0, duration_s=7)
    graded = await grade(task, RecordedSandbox({"reward.txt": b"1"}, end))
    assert graded == Grade(kind="grader_error", reason="grader_timeout: test.sh ran longer than 7 s")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (dict(exit_code=2), "exited with 2, its last line: 'oh no'"),
        (dict(exit_code=None, signal=11), "was killed by signal 11"),
        (dict(exit_code=None, signal=9, cause=EndCause.OOM), "ran out of memory"),
    ],
)
async def test_without_a_reward_file_the_reason_says_how_the_script_ended(
    end: dict[str, object], reason: str, task: Task
) -> None:
    fields = dict(cause=EndCause.EXITED, signal=None, output=b"well\noh no\n", output_dropped=0, duration_s=1.0) | end
    graded = await grade(task, RecordedSandbox({}, RunEnd(**fields)))
    assert reason in graded.reason


async def test_without_a_test_script_there_is_no_grade_and_nothing_runs(task: Task) -> None:
    (task.tests / "test.sh").unlink()
    box = RecordedSandbox({"reward.txt": b"1"})
    graded = await grade(task, box)
    assert graded.kind == "grader_error"
    assert "test.sh is missing" in graded.reason
    assert box.plans == []


async def test_the_tests_run_as_the_grader_with_a_clean_environment_and_the_tasks_deadline(task: Task) -> None:
    box = RecordedSandbox({"reward.txt": b"1"})
    await grade(task, box)
    [(user, plan)] = box.plans
    assert user == "grader"
    assert plan.argv == ("/bin/bash", "/tests/test.sh")
    assert set(plan.env) == {"PATH", "HOME", "LANG"}
    assert plan.mounts == {"/tests": task.tests}
    assert plan.deadline_s == 7


async def test_a_grader_works_in_any_thread(task: Task) -> None:
    def in_a_loop_of_its_own() -> Grade:
        return asyncio.run(grade(task, RecordedSandbox({"reward.txt": b"1"})))

    assert await asyncio.to_thread(in_a_loop_of_its_own) == Grade(kind="reward", reward=1.0)
