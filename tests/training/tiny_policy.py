"""Tiny models and rows for the trainer's tests, and a reference that loops over rows and tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from openforgerl.records import Batch, MaskReason, TokenRow, TrainingRow
from openforgerl.trainers.local import LocalTrainer
from openforgerl.trainers.local_config import LocalTrainerConfig

VOCABULARY = 96


def write_tiny_llama(folder: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("the model's own")
    return folder


def row(
    ids: Sequence[int],
    trained: Sequence[int],
    *,
    session: str = "s0",
    branch: int = 0,
    logprobs: Sequence[float] | None = None,
    temperature: float = 1.0,
    masked: dict[int, MaskReason] | None = None,
) -> TokenRow:
    """A row whose places in `trained` have mask 1; `masked`: sampled places with another reason than context."""
    masked = masked or {}
    places = set(trained)
    sampled = places | set(masked)
    return TokenRow(
        session_id=session,
        branch=branch,
        token_ids=tuple(ids),
        loss_mask=tuple(int(place in places) for place in range(len(ids))),
        mask_reasons=tuple(
            None if place in places else masked.get(place, MaskReason.CONTEXT) for place in range(len(ids))
        ),
        logprobs=tuple(logprobs) if logprobs is not None else (0.0,) * len(ids),
        policy_versions=tuple(0 if place in sampled else -1 for place in range(len(ids))),
        logprob_kind="sampled",
        temperature=temperature,
        segments=(),
    )


def conversations(seed: int = 0, *, groups: int = 2, rollouts: int = 4) -> list[TokenRow]:
    """Rows of rollouts that share a system prompt, and within a group a task; two or three turns each; one rollout
    has a second branch that shares a sampled turn, and temperatures differ between groups."""
    rng = random.Random(seed)

    def some(n: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(n)]

    system, rows = some(20), []
    for group in range(groups):
        task = system + some(6)
        for rollout in range(rollouts):
            ids, trained = list(task), []
            for _ in range(rng.randrange(2, 4)):
                answer = some(rng.randrange(3, 9))
                trained += range(len(ids), len(ids) + len(answer))
                ids += answer + some(4)
            name, heat = f"g{group}-r{rollout}", 1.0 if group == 0 else 0.7
            rows.append(row(ids, trained, session=name, temperature=heat))
            if rollout == 0:
                cut = trained[-1] - 1
                other = ids[:cut] + some(7)
                rows.append(row(other, range(cut, cut + 7), session=name, branch=1, temperature=heat))
    return rows


def with_engine_logprobs(rows: Sequence[TokenRow], trainer: LocalTrainer, noise: float = 0.0) -> list[TokenRow]:
    """Rows as an engine at the trainer's weights would have recorded them, off by at most `noise`."""
    rng = random.Random(1)
    recorded = []
    for one, values in zip(rows, trainer.logprobs(rows), strict=True):
        known = [version != -1 for version in one.policy_versions]
        logprobs = [v + rng.uniform(-noise, noise) if k else 0.0 for v, k in zip(values, known, strict=True)]
        recorded.append(replace(one, logprobs=tuple(logprobs)))
    return recorded


def batch_of(rows: Sequence[TokenRow], *, advantage: Callable[[TokenRow], float]) -> Batch:
    return Batch(
        rows=tuple(
            TrainingRow(
                row=one, rollout_id=one.session_id, group_id=one.session_id.split("-")[0], reward=0.0,
                advantage=advantage(one),
            )
            for one in rows
        ),
        denominator=float(sum(sum(one.loss_mask) for one in rows)),
    )  # fmt: skip


def alternating(one: TokenRow) -> float:
    """Some advantage that depends on the session only."""
    return (int(one.session_id[-1]) % 3 - 1) * 0.75 + 0.1


def load(folder: Path, **settings: Any) -> LocalTrainer:
    return LocalTrainer.load(folder, LocalTrainerConfig(**{"max_gap": None, **settings}))


def policy_gradient(model: Path, batch: Batch, **settings: Any) -> list[Tensor]:
    """By parameter, as it reaches the optimizer of one policy step."""
    taken: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        taken.extend(parameter.grad.clone() for group in optimizer.param_groups for parameter in group["params"])

    trainer = load(model, grad_clip=1e9, **settings)
    hook = register_optimizer_step_pre_hook(keep)
    trainer.policy_step(batch)
    hook.remove()
    return taken


def naive_logprobs(model: Any, one: TokenRow, temperature: float | None = None) -> Tensor:
    """Plain forward of one row, log-prob of each token; 0 at place 0."""
    logits = model(torch.tensor([one.token_ids])).logits[0, :-1] / (temperature or one.temperature)
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(one.token_ids[1:])[:, None])[:, 0]
    return torch.cat([torch.zeros(1), chosen])


def naive_policy_loss(model: Any, batch: Batch, cap: float = 2.0) -> Tensor:
    """Token by token, row by row: what the step must be the gradient of."""
    total = torch.zeros(())
    for training in batch.rows:
        current = naive_logprobs(model, training.row)
        for place, mask in enumerate(training.row.loss_mask):
            if mask:
                proximal = current[place].detach()
                weight = min(math.exp(proximal.item() - training.row.logprobs[place]), cap)
                ratio = torch.exp(current[place] - proximal)
                total = total - training.weight * weight * ratio * training.advantage
    return total / batch.denominator


def naive_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def relative_difference(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    difference = torch.cat([(a - b).reshape(-1) for a, b in zip(left, right, strict=True)])
    return (difference.norm() / torch.cat([b.reshape(-1) for b in right]).norm()).item()
