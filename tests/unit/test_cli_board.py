"""TensorBoard files: what a step tells is read back by TensorBoard's own reader."""

import errno
import resource
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openforgerl.cli.board import Board
from openforgerl.workflows.listener import Silent


def test_every_number_of_a_step_is_a_scalar_at_its_policy_version(tmp_path: Path) -> None:
    board = Board(tmp_path, Silent(), 0)
    board.step("sft 1", {"name": "sft 1", "policy_version": 1, "loss": 0.5})
    board.step("grpo 1", {"name": "grpo 1", "policy_version": 2, "reward": 0.25})
    board.close()
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("grpo/reward")] == [(2, 0.25)]
    assert [(event.step, event.value) for event in read.Scalars("sft/loss")] == [(1, 0.5)]
    assert not [tag for tag in read.Tags()["scalars"] if tag.endswith("/name")]


def test_a_file_that_cannot_grow_is_one_error_that_names_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    board = Board(tmp_path, Silent(), 0)
    (file,) = tmp_path.iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            board.step("sft 1", {"loss": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(file))
    board.step("sft 2", {"loss": 0.25})
    board.close()
    assert capfd.readouterr().err == ""
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in read.Scalars("sft/loss")] == [0.25]
