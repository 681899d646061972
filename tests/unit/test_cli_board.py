"""TensorBoard files: what a step tells is read back by TensorBoard's own reader."""

from pathlib import Path

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
