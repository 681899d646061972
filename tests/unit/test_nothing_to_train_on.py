"""Where a phase has no rollout to go on with, its error names a task and why."""

import pytest

from openforgerl.errors import TrainerError
from openforgerl.records import EndedBy, Ending, Grade, Session
from openforgerl.workflows.train import _evaluation, _example

FINISHED = Ending(ended_by=EndedBy.FINISHED)
NAN = Grade(kind="grader_error", reason="reward.txt holds nan, which is outside of [0, 1]")


def session(ending: Ending, grade: Grade) -> Session:
    return Session(session_id="s", task_id="copy-file-1", ending=ending, grade=grade)


def test_an_evaluation_without_a_grade_names_a_task_and_its_reason() -> None:
    with pytest.raises(TrainerError, match=r"no held-out rollout was graded; e\.g\. task copy-file-1: .*holds nan"):
        _evaluation([session(FINISHED, NAN)], 0)


@pytest.mark.parametrize(
    ("ending", "grade", "said"),
    [
        (
            Ending(ended_by=EndedBy.INFRA, reason="sandbox:\nno room"),
            Grade(kind="ungraded", reason="infra"),
            "infrastructure failure, sandbox: no room",
        ),
        (FINISHED, Grade(kind="reward", reward=0.0), "reward 0.0, ended by finished"),
        (FINISHED, NAN, f"grader_error, {NAN.reason}"),
    ],
)
def test_the_example_is_one_line_with_the_reason(ending: Ending, grade: Grade, said: str) -> None:
    assert _example([session(ending, grade)]) == f"; e.g. task copy-file-1: {said}"
