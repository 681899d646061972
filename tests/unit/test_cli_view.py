"""The terminal view: what stands in it when graders break."""

from __future__ import annotations

import io

from openforgerl.cli.view import TerminalView
from openforgerl.records import EndedBy, Ending, Grade, Session


def session(number: int, grade: Grade) -> Session:
    return Session(session_id=f"s{number}", ending=Ending(ended_by=EndedBy.FINISHED), grade=grade)


def test_the_first_grader_error_of_a_batch_is_told_and_a_mean_says_of_how_many() -> None:
    stream = io.StringIO()
    view = TerminalView(1, stream)
    view.phase("held-out, base", 3)
    view.attempt(session(1, Grade(kind="reward", reward=0.5)))
    view.attempt(session(2, Grade(kind="grader_error", reason="reward nan is not finite")))
    view.attempt(session(3, Grade(kind="grader_error", reason="reward nan is not finite")))
    view.step("heldout base", {"reward": 0.5, "graded": 1, "rollouts": 3})
    _, error, mean = stream.getvalue().splitlines()
    assert error == "  s2: not graded, reward nan is not finite"
    assert mean.endswith("reward 0.5, 1 of 3 graded")


def test_a_batch_that_is_graded_whole_is_its_mean() -> None:
    stream = io.StringIO()
    TerminalView(1, stream).step("heldout base", {"reward": 0.5, "graded": 3, "rollouts": 3})
    assert stream.getvalue().strip().endswith("reward 0.5")
