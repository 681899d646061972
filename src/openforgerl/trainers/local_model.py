"""A causal language model that scores packs: features of needed positions, then log-probs a chunk at a time.

Full vocabulary logits never exist for more than one chunk, and only where a log-prob is wanted.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openforgerl.trainers.local_attention import NAME, masked_branches
from openforgerl.trainers.local_logprobs import target_logprobs
from openforgerl.trainers.packing import Pack

FULL_ATTENTION = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "SmolLM3ForCausalLM"}
)
"""Architectures in which tokens meet in full attention only, and logits are lm_head(last hidden state)."""
_LENGTH_FREE_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings that depend on a token's position, not on the length of the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Of n targets, each given its prefix: log-probs (with gradient where asked) and the entropy there (never)."""

    logprobs: Tensor
    entropies: Tensor


def trie_is_exact(config: Any) -> bool:
    """Whether a packed trie gives this model's own log-probs: full attention in every layer, no state along the
    sequence, rotary embeddings that ignore the sequence's length. `config` is a transformers configuration."""
    if not set(config.architectures or ()) <= FULL_ATTENTION or not config.architectures:
        return False
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return False
    sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return not sliding and rope in _LENGTH_FREE_ROPE


class PackedModel:
    """Scores targets of packs with a transformers model; `exact_trie` says whether prefixes may be shared."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.exact_trie = trie_is_exact(model.config)
        if self.exact_trie:
            model.set_attn_implementation(NAME)

    def in_float64(self) -> PackedModel:
        """A copy with 53 bits instead of 24 in weights and sums; what the model's own code does in float32 stays."""
        return PackedModel(copy.deepcopy(self.model).double())

    def features(self, pack: Pack, sources: Tensor) -> Tensor:
        """(n, width) of the nodes `sources`, from which `score` computes; with gradient where it is enabled."""
        ids = torch.from_numpy(pack.ids)[None]
        if not self.exact_trie:
            # the model's own head may scale or cap its logits: take them from its forward
            logits: Tensor = self.model(ids, use_cache=False, logits_to_keep=sources).logits[0]
            return logits
        positions = torch.from_numpy(pack.positions)[None]
        output = self.model.base_model(ids, position_ids=positions, use_cache=False, branches=masked_branches(pack))
        hidden: Tensor = output.last_hidden_state[0]
        return hidden[sources]

    def score(self, features: Tensor, targets: Tensor, temperatures: Tensor) -> Scores:
        """log softmax(logits / temperature)[target] for each row of `features`."""
        logits = self.model.get_output_embeddings()(features) if self.exact_trie else features
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if not bool((temperatures == 1.0).all()):
            logits = logits / temperatures[:, None]
        logprobs, entropies = target_logprobs(logits, targets)
        return Scores(logprobs=logprobs, entropies=entropies)
