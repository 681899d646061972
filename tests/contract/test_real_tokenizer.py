"""The real model's tokenizer keeps what the tiny one of the tests keeps. Runs where `make setup` has put the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from assembly_laws import assert_laws
from openforgerl.harnesses.installing import cache_folder
from token_world import BASH, FIXTURE, answer, call, result, system, template, user

REAL = cache_folder() / "models" / "smollm2-135m-instruct"


@pytest.fixture(params=[FIXTURE, REAL], ids=["tiny", "SmolLM2"])
def folder(request: pytest.FixtureRequest) -> Path:
    if not (request.param / "tokenizer.json").exists():
        pytest.skip(f"no model in {request.param}: make setup")
    return request.param


def test_the_laws_of_assembly_hold(folder: Path) -> None:
    for seed in range(5):
        assert_laws(Random(seed), folder=folder)


def test_ids_are_the_stock_ones_of_the_whole_text(folder: Path) -> None:
    chat = template(folder=folder)
    messages: Sequence[object] = (
        system("You work in a shell.\nDate: 2026-12-01"),
        user("Write 'blue sky' into notes.txt.  \n\n Größe 🦜 12345"),
        answer("I do.", call("a", '{"command":"echo \\"blue sky\\" > notes.txt"}')),
        result("a", "(no output)\n\nCommand exited with code 1"),
    )
    stock = type(chat.codec.tokenizer).from_str(chat.codec.tokenizer.to_str())
    stock.encode_special_tokens = False
    ids = chat.whole_ids(messages, (BASH,)).tolist()
    assert ids == stock.encode(chat.whole_text(messages, (BASH,)), add_special_tokens=False).ids
    assert [chat.codec.token_text(token) for token in chat.closing_ids[:1]] == ["<|im_end|>"]
    assert chat.codec.stop_ids[0] == chat.closing_ids[0]
