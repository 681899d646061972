"""Packing is exact where prefixes may be shared, and not tried where they may not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policy import (
    VOCABULARY,
    alternating,
    batch_of,
    conversations,
    load,
    naive_logprobs,
    naive_model,
    naive_policy_loss,
    policy_gradient,
    relative_difference,
    with_engine_logprobs,
)
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from openforgerl.trainers.local_model import trie_is_exact

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SHARED = {
    "llama3-rope": LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
}  # fmt: skip
APART = {
    "sliding-mistral": MistralConfig(**SHAPE, sliding_window=8),
    "sliding-qwen2": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "gemma2": Gemma2Config(**SHAPE, sliding_window=8, final_logit_softcapping=3.0),
    "dynamic-rope": LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
}


def write(config: PreTrainedConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", [*SHARED, *APART])
def test_gradient_and_logprobs_equal_those_of_the_plain_model(name: str, tmp_path: Path) -> None:
    folder = write((SHARED | APART)[name], tmp_path / "model")
    trainer, model = load(folder), naive_model(folder)
    rows = with_engine_logprobs(conversations(), trainer, noise=0.5)
    for one, values in zip(rows, trainer.logprobs(rows), strict=True):
        torch.testing.assert_close(torch.tensor(values), naive_logprobs(model, one).detach(), atol=2e-5, rtol=2e-5)
    batch = batch_of(rows, advantage=alternating)
    naive_policy_loss(model, batch).backward()
    taken = policy_gradient(folder, batch)
    assert relative_difference(taken, [p.grad for p in model.parameters()]) <= 1e-5


@pytest.mark.parametrize("name", [*SHARED, *APART])
def test_prefixes_are_shared_only_by_full_attention_models(name: str, tmp_path: Path) -> None:
    folder = write((SHARED | APART)[name], tmp_path / "model")
    metrics = load(folder).sft_step(conversations()).metrics
    assert (metrics["tokens_forwarded"] < metrics["tokens_in_rows"]) == (name in SHARED)


def test_an_architecture_that_nobody_checked_is_not_packed() -> None:
    unknown = LlamaConfig(**SHAPE, architectures=["SomethingNewForCausalLM"])
    assert not trie_is_exact(unknown)
    assert not trie_is_exact(LlamaConfig(**SHAPE))
    assert trie_is_exact(LlamaConfig(**SHAPE, architectures=["LlamaForCausalLM"]))


def test_the_real_model_packed_has_the_gradient_of_separate_rows() -> None:
    cache = Path(os.environ.get("OPENFORGERL_CACHE", Path.home() / ".cache" / "openforgerl"))
    folder = cache / "models" / "smollm2-135m-instruct"
    if not (folder / "model.safetensors").exists():
        pytest.skip(f"no {folder}: `make setup` makes it")
    rows = [replace(one, logprobs=(-2.0,) * len(one.token_ids)) for one in conversations(groups=1, rollouts=1)]
    batch = batch_of(rows, advantage=alternating)
    packed, apart = (policy_gradient(folder, batch, pack=choice) for choice in (True, False))
    assert relative_difference(packed, apart) <= 1e-5
