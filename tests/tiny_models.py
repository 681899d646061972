"""Tiny random models as Hugging Face folders, and what they say in a plain full forward: the reference of engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 512
_TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def write_tiny_model(folder: Path, *, kind: str = "llama", seed: int = 0, **config: Any) -> Path:
    torch.manual_seed(seed)
    made = AutoConfig.for_model(kind, **{**_TINY, **config})
    AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    return folder


def load_plain(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def reference_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], sampled: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """Log-prob of each sampled id given all ids before it, in one forward without any cache."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *sampled]]), use_cache=False).logits[0].double()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return [logprobs[len(prompt) - 1 + at, token].item() for at, token in enumerate(sampled)]
