"""A tiny random Qwen3-VL as a Hugging Face folder, tokenizer and processor settings included."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

FIXTURE = Path(__file__).parent / "fixtures" / "tiny-chatml"
VISION_SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 8,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 16 * 16 * 4, "longest_edge": 64 * 64},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
    "initializer_range": 0.3,
}


def write_vision_tokens(folder: Path) -> tuple[Tokenizer, Path]:
    """Tokenizer, processor settings and config of the model; enough for a proxy."""
    shutil.copytree(FIXTURE, folder, dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in VISION_SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    _config(tokenizer).save_pretrained(folder)
    return tokenizer, folder


def write_tiny_vision(folder: Path, *, seed: int = 0) -> Path:
    tokenizer, _ = write_vision_tokens(folder)
    torch.manual_seed(seed)
    Qwen3VLForConditionalGeneration(_config(tokenizer)).save_pretrained(folder)
    return folder


def _config(tokenizer: Tokenizer) -> Any:
    start, end, image, video = (tokenizer.token_to_id(text) for text in VISION_SPECIALS)
    return Qwen3VLConfig(
        text_config={**_TEXT, "vocab_size": tokenizer.get_vocab_size()},
        vision_config=_VISION,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
