"""Checkpoints: resume to the bit, whole or not at all, refused beside the wrong weights."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from tiny_policy import alternating, batch_of, conversations, load, with_engine_logprobs
from transformers import AutoModelForCausalLM

from openforgerl.errors import ConfigError, TrainerError
from openforgerl.trainers.folders import published
from openforgerl.trainers.local import LocalTrainer
from openforgerl.trainers.local_config import LocalTrainerConfig


def step(trainer: LocalTrainer, number: int) -> None:
    """Steps 0 and 1 are SFT, later ones RL."""
    rows = conversations(seed=number)
    if number < 2:
        trainer.sft_step(rows)
    else:
        trainer.policy_step(batch_of(with_engine_logprobs(rows, trainer, noise=0.1), advantage=alternating))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_resumed_run_equals_a_straight_one_to_the_bit(tiny: Path, tmp_path: Path, cut: int) -> None:
    straight = load(tiny)
    for number in range(4):
        step(straight, number)
    first = load(tiny)
    for number in range(cut):
        step(first, number)
    first.save(tmp_path / "v")
    first.save_state(tmp_path / "state")
    torch.manual_seed(99)
    second = load(tmp_path / "v")
    second.load_state(tmp_path / "state")
    assert second.policy_version == cut
    for number in range(cut, 4):
        step(second, number)
    assert second.policy_version == straight.policy_version == 4
    assert all(torch.equal(value, second.state()[name]) for name, value in straight.state().items())


def test_the_first_rl_step_starts_a_fresh_optimizer(tiny: Path, tmp_path: Path) -> None:
    warm = load(tiny)
    warm.sft_step(conversations())
    warm.save(tmp_path / "sft")
    fresh = load(tmp_path / "sft")
    rows = with_engine_logprobs(conversations(), fresh)
    for trainer in (warm, fresh):
        trainer.policy_step(batch_of(rows, advantage=alternating))
    assert all(torch.equal(value, warm.state()[name]) for name, value in fresh.state().items())


def test_a_checkpoint_is_a_model_folder_with_the_given_template(tiny: Path, tmp_path: Path) -> None:
    template = tmp_path / "ours.jinja"
    template.write_text("our template")
    trainer = LocalTrainer.load(tiny, LocalTrainerConfig(), chat_template=template)
    trainer.sft_step(conversations())
    trainer.save(tmp_path / "v1")
    names = {path.name for path in (tmp_path / "v1").iterdir()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"
    }  # fmt: skip
    assert (tmp_path / "v1" / "chat_template.jinja").read_text() == "our template"
    assert (tmp_path / "v1" / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "v1")
    assert loaded.dtype is torch.float32
    assert all(torch.equal(value, trainer.state()[name]) for name, value in loaded.named_parameters())


def test_a_checkpoint_outlives_the_folder_it_came_from(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "source")
    trainer = load(tmp_path / "source")
    shutil.rmtree(tmp_path / "source")
    trainer.save(tmp_path / "v1")
    assert (tmp_path / "v1" / "tokenizer.json").exists()


def test_saving_over_a_checkpoint_replaces_it(tiny: Path, tmp_path: Path) -> None:
    trainer = load(tiny)
    trainer.save(tmp_path / "v")
    (tmp_path / "v" / "left-over").write_text("old")
    trainer.sft_step(conversations())
    trainer.save(tmp_path / "v")
    assert not (tmp_path / "v" / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["v"]
    assert all(torch.equal(value, trainer.state()[name]) for name, value in load(tmp_path / "v").state().items())


def test_the_state_names_each_tied_weight_once_and_is_live(tiny: Path) -> None:
    trainer = load(tiny)
    state = trainer.state()
    assert "model.embed_tokens.weight" in state
    assert "lm_head.weight" not in state
    before = {name: value.clone() for name, value in state.items()}
    trainer.sft_step(conversations())
    assert not any(torch.equal(before[name], value) for name, value in state.items())


def test_a_state_beside_other_weights_is_refused(tiny: Path, tmp_path: Path) -> None:
    trainer = load(tiny)
    trainer.sft_step(conversations())
    trainer.save_state(tmp_path / "state")
    with pytest.raises(TrainerError, match="belongs to weights"):
        load(tiny).load_state(tmp_path / "state")


@pytest.mark.parametrize("damage", ["missing", "cut", "json", "version"])
def test_a_damaged_state_is_named(tiny: Path, tmp_path: Path, damage: str) -> None:
    trainer = load(tiny)
    folder = tmp_path / "state"
    trainer.save_state(folder)
    about, tensors = folder / "state.json", folder / "state.safetensors"
    if damage == "missing":
        tensors.unlink()
    elif damage == "cut":
        os.truncate(tensors, tensors.stat().st_size // 2)
    elif damage == "json":
        about.write_text("{")
    else:
        about.write_text(json.dumps({**json.loads(about.read_text()), "state_version": 99}))
    with pytest.raises(TrainerError, match=f"trainer state {folder}"):
        trainer.load_state(folder)


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load(tmp_path)


def test_weights_that_cannot_be_read_are_named(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(TrainerError, match=f"{folder}"):
        load(folder)


def test_a_save_that_fails_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    with published(folder) as writing:
        (writing / "file").write_text("old")

    def fail() -> None:
        with published(folder) as writing:
            (writing / "file").write_text("new")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert (folder / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


def test_a_save_takes_over_what_a_crash_left(tmp_path: Path) -> None:
    for name in ("v", ".writing-v", ".old-v"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "left-over").write_text("old")
    with published(tmp_path / "v") as writing:
        (writing / "file").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["v"]
    assert [path.name for path in (tmp_path / "v").iterdir()] == ["file"]


def test_a_full_disk_is_one_error_that_names_the_folder_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk: safetensors meets it as it would meet ENOSPC."""
    trainer = load(tiny)
    trainer.sft_step(conversations())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        for save, name in ((trainer.save, "checkpoints/v1"), (trainer.save_state, "state/v1")):
            with pytest.raises(TrainerError, match=rf"{name} cannot be saved: .*too large") as raised:
                save(tmp_path / name)
            assert "\n" not in str(raised.value)
            assert not list((tmp_path / name).parent.iterdir())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
