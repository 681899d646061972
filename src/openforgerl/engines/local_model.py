"""A Hugging Face causal LM with full attention, run over a slot cache, and its weights replaced in place.

Only architectures on the allow-list: with a sliding window or a state along the sequence, a kept prefix is not what the
model would have computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from openforgerl.engines.limits import refusal
from openforgerl.engines.local_attention import NAME, Piece, Plan
from openforgerl.engines.local_cache import SlotCache
from openforgerl.engines.local_linear import pack_linears
from openforgerl.errors import EngineError

FULL_ATTENTION = ("gemma", "granite", "llama", "mistral", "olmo2", "qwen2", "qwen3", "smollm3")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def check_architecture(config: PretrainedConfig) -> None:
    """Raises EngineError that names what a model has beside plain full attention."""
    kind = config.model_type
    if kind not in FULL_ATTENTION:
        raise EngineError(f"model_type {kind!r} is not known to be full attention; known: {', '.join(FULL_ATTENTION)}")
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if others:
        raise EngineError(f"model_type {kind!r} has layers of type {', '.join(others)}; only full_attention works")
    if kind == "mistral" and config.sliding_window is not None:
        raise EngineError(f"this model has a sliding_window of {config.sliding_window}; only full attention works")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in _STATIC_ROPE:
        raise EngineError(f"rope_type {rope!r} changes with the length of a sequence; known: {', '.join(_STATIC_ROPE)}")


class PolicyModel:
    """Forward passes and weights; not safe for threads: the worker owns it."""

    def __init__(self, model: PreTrainedModel, *, slots: int) -> None:
        config = model.config
        check_architecture(config)
        self._model = model.train(False).requires_grad_(False)
        self._model.set_attn_implementation(NAME)
        self._packed = pack_linears(model)
        # transformers renamed the argument in 5.24.
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.vocabulary = int(config.vocab_size)
        self.context_length = int(config.max_position_embeddings)
        heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self._group = int(config.num_attention_heads) // heads
        self.cache = SlotCache(
            slots=slots,
            layers=int(config.num_hidden_layers),
            heads=heads,
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads),
            dtype=model.dtype,
        )

    @classmethod
    def load(cls, folder: Path, *, dtype: torch.dtype, slots: int) -> PolicyModel:
        """Raises EngineError where the folder is not a model that can be run."""
        if not (folder / "config.json").is_file():
            raise EngineError(f"{folder} has no config.json; give a Hugging Face model folder")
        try:
            check_architecture(AutoConfig.from_pretrained(folder))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        except (OSError, ValueError, KeyError) as error:
            raise EngineError(f"{folder} cannot be loaded as a causal language model: {error}") from error
        return cls(model, slots=slots)

    def forward(self, pieces: Sequence[Piece], sampled: Sequence[int]) -> Tensor:
        """Keys and values of all pieces' ids into their slots; what is before a piece is in its slot already.

        Gives the logits (len(sampled), vocabulary) behind the last ids of the pieces with the indices `sampled`.
        """
        plan = Plan(pieces, group=self._group, dtype=self._model.dtype)
        self.cache.aim(plan.slots, plan.positions)
        inputs = {
            "input_ids": plan.ids[None],
            "position_ids": plan.positions[None],
            "use_cache": True,
            self._cache_name: self.cache,
            "plan": plan,
        }
        if not sampled:
            self._model.base_model(**inputs)
            return torch.empty(0, self.vocabulary)
        logits: Tensor = self._model(**inputs, logits_to_keep=plan.lasts[list(sampled)]).logits
        return logits[0]

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises EngineError unless `state` has every weight of this model, in its shape, and nothing else."""
        own = self._model.state_dict()
        tied = {name for name in own if name not in state and self._tied_to(own, name, state)}
        missing = sorted(own.keys() - state.keys() - tied)
        unknown = sorted(state.keys() - own.keys())
        if missing or unknown:
            raise refusal(f"weights do not fit: missing {missing[:3]}, unknown {unknown[:3]}")
        for name, tensor in state.items():
            if tensor.shape != own[name].shape:
                raise refusal(f"weight {name} has shape {tuple(tensor.shape)}, not {tuple(own[name].shape)}")
            if not bool(torch.isfinite(tensor).all()):
                raise refusal(f"weight {name} holds a value that is not finite")

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy checked weights in place."""
        own = self._model.state_dict()
        for name, tensor in state.items():
            own[name].copy_(tensor)
        for linear in self._packed:
            linear.renew()

    @staticmethod
    def _tied_to(own: Mapping[str, Tensor], name: str, state: Mapping[str, Tensor]) -> bool:
        return any(other in own and own[other].data_ptr() == own[name].data_ptr() for other in state)


def read_state(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's safetensors files. Raises EngineError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise refusal(f"{folder} has no *.safetensors file; save the model with save_pretrained")
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            state.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise refusal(f"{file} cannot be read: {error}") from error
    return state
