"""The local trainer on disk: a Hugging Face folder for everyone, and the optimizer's state for resuming exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from openforgerl.errors import ConfigError, TrainerError
from openforgerl.trainers.folders import published

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")
_STATE_VERSION = 1


def companions(folder: Path) -> dict[str, bytes]:
    """Every file of a model folder that is not weights: tokenizer, template, generation settings."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"[model] path {str(folder)!r} has no config.json: give a Hugging Face model folder")
    files = (path for path in sorted(folder.iterdir()) if path.is_file())
    return {path.name: path.read_bytes() for path in files if not path.name.endswith(_WEIGHTS)}


def save_model(model: Any, folder: Path, files: Mapping[str, bytes]) -> None:
    """Weights and config of `model`, with `files` beside them, as one Hugging Face folder. Raises TrainerError."""
    with _saving(folder) as writing:
        model.save_pretrained(writing, max_shard_size="1TB")
        for name, content in files.items():
            if name != "config.json":
                (writing / name).write_bytes(content)


def save_state(folder: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, facts: Mapping[str, Any]) -> None:
    """Moments, random state and `facts`, tied to the weights by a fingerprint. Raises TrainerError."""
    tensors = {"rng": torch.get_rng_state()}
    for name, parameter in model.named_parameters():
        tensors |= {f"{key}/{name}": value for key, value in optimizer.state.get(parameter, {}).items()}
    about = {**facts, "state_version": _STATE_VERSION, "weights": fingerprint(model)}
    with _saving(folder) as writing:
        save_file(tensors, writing / "state.safetensors")
        (writing / "state.json").write_text(json.dumps(about, indent=1))


@contextmanager
def _saving(folder: Path) -> Iterator[Path]:
    """`published`, with a full disk and the like as one line; safetensors' own error is no OSError."""
    try:
        with published(folder) as writing:
            yield writing
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise TrainerError(f"{folder} cannot be saved: {reason}; make room, then go on with --resume") from error


def load_facts(folder: Path) -> dict[str, Any]:
    """What `save_state` was told. Raises TrainerError where the folder is no state of ours."""
    try:
        facts: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise TrainerError(f"trainer state {folder}: {error}") from error
    if facts.get("state_version") != _STATE_VERSION:
        raise TrainerError(f"trainer state {folder}: state_version {facts.get('state_version')!r} != {_STATE_VERSION}")
    return facts


def load_state(folder: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, weights: str) -> None:
    """Puts moments and random state back. Raises TrainerError where the state belongs to other weights."""
    if (own := fingerprint(model)) != weights:
        raise TrainerError(f"trainer state {folder} belongs to weights {weights}, the loaded model is {own}")
    try:
        tensors = load_file(folder / "state.safetensors")
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"trainer state {folder}: {error}") from error
    torch.set_rng_state(tensors.pop("rng"))
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        kind, name = key.split("/", 1)
        optimizer.state[parameters[name]][kind] = value


def fingerprint(model: nn.Module) -> str:
    """Of the names, shapes and a sample of every parameter: tells two checkpoints apart, cheaply."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat: Tensor = parameter.detach().reshape(-1)
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(flat[:: max(1, flat.numel() // 1024)].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
