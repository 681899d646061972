"""Packed against separate rows: tokens, seconds and gradient of one policy step of the real model, in one run.

usage: python bench/trainer.py [--model FOLDER] [--tasks 2] [--rollouts 8] [--shared 250] [--threads 2]
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from openforgerl.records import Batch, MaskReason, TokenRow, TrainingRow
from openforgerl.trainers.local import LocalTrainer
from openforgerl.trainers.local_config import LocalTrainerConfig

CACHE = Path(os.environ.get("OPENFORGERL_CACHE", Path.home() / ".cache" / "openforgerl"))
TURNS, SAMPLED, TOOL_OUTPUT, INSTRUCTION = 3, 22, 16, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=CACHE / "models" / "smollm2-135m-instruct")
    for name, value in {"tasks": 2, "rollouts": 8, "shared": 250, "threads": os.cpu_count() or 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    batch = batch_of(asked.tasks, asked.rollouts, asked.shared)
    packed, apart = (measured(asked.model, batch, pack=pack) for pack in (True, False))
    header = f"{'':<14}{'tokens':>8}{'cpu s':>8}{'wall s':>8}{'tokens of rows / cpu s':>24}"
    print(f"{asked.tasks} x {asked.rollouts} rollouts behind {asked.shared} shared tokens, {asked.threads} threads")
    print(header)
    for name, (metrics, cpu, wall, _) in {"packed": packed, "separate rows": apart}.items():
        rate = metrics["tokens_in_rows"] / cpu
        print(f"{name:<14}{metrics['tokens_forwarded']:>8.0f}{cpu:>8.1f}{wall:>8.1f}{rate:>24.0f}")
    tokens = apart[0]["tokens_forwarded"] / packed[0]["tokens_forwarded"]
    print(f"{'ratio':<14}{tokens:>8.2f}{apart[1] / packed[1]:>8.2f}{apart[2] / packed[2]:>8.2f}")
    print(f"relative difference of the gradient {difference(packed[3], apart[3]):.1e}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


def batch_of(tasks: int, rollouts: int, shared: int) -> Batch:
    """Rollouts of a few turns: a system prompt that all share, a task that a group shares, then their own tokens."""
    rng = random.Random(0)
    system = ids(rng, shared)
    rows = []
    for group in range(tasks):
        prompt = system + ids(rng, INSTRUCTION)
        rows += [
            training_row(rollout(rng, prompt, f"g{group}-r{member}"), member % 2 - 0.5) for member in range(rollouts)
        ]
    return Batch(rows=tuple(rows), denominator=float(sum(sum(row.row.loss_mask) for row in rows)))


def training_row(row: TokenRow, advantage: float) -> TrainingRow:
    return TrainingRow(row=row, rollout_id=row.session_id, group_id="", reward=0.0, advantage=advantage)


def rollout(rng: random.Random, prompt: list[int], name: str) -> TokenRow:
    token_ids, mask = list(prompt), [0] * len(prompt)
    for _ in range(TURNS):
        size = rng.randrange(SAMPLED - 8, SAMPLED + 9)
        token_ids += ids(rng, size + TOOL_OUTPUT)
        mask += [1] * size + [0] * TOOL_OUTPUT
    return TokenRow(
        session_id=name,
        branch=0,
        token_ids=tuple(token_ids),
        loss_mask=tuple(mask),
        mask_reasons=tuple(None if one else MaskReason.CONTEXT for one in mask),
        logprobs=tuple(-9.0 * one for one in mask),
        policy_versions=tuple(one - 1 for one in mask),
        logprob_kind="sampled",
        temperature=1.0,
        segments=(),
    )


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 40_000) for _ in range(count)]


def measured(model: Path, batch: Batch, *, pack: bool) -> tuple[dict[str, float], float, float, list[Tensor]]:
    """(metrics, CPU seconds, wall seconds, gradient) of one policy step."""
    trainer = LocalTrainer.load(model, LocalTrainerConfig(pack=pack, max_gap=None, grad_clip=1e9))
    taken: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        taken.extend(parameter.grad.clone() for group in optimizer.param_groups for parameter in group["params"])

    hook = register_optimizer_step_pre_hook(keep)
    cpu, wall = time.process_time(), time.perf_counter()
    update, _ = trainer.policy_step(batch)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    hook.remove()
    return dict(update.metrics), cpu, wall, taken


def difference(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    apart = sum((a - b).square().sum().item() for a, b in zip(left, right, strict=True))
    return math.sqrt(apart / sum(b.square().sum().item() for b in right))


if __name__ == "__main__":
    main()
