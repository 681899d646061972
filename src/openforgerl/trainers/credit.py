"""Finished rollouts -> training rows and one batch: who is admitted, with which advantage, over which denominator.

Pure, and independent of the order in which rollouts and rows come: everything goes by id. A session that is not
trained leaves with one named reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from openforgerl.errors import TrainerError
from openforgerl.records import Batch, EndedBy, Session, TokenRow, TrainingRow

_SAME = 1e-9
"""Rewards closer than this (relative to their size) are equal: 0.1 + 0.2 and 0.3 carry no signal."""


class CreditConfig(BaseModel):
    """`[trainer.credit]`: how rewards become advantages, and what the loss is divided by."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    aggregation: Literal["token-mean", "rollout-mean", "rollout-sum"] = "token-mean"
    """token-mean: sum of token terms / trained tokens. rollout-mean: mean over rollouts of each one's token mean.
    rollout-sum: sum of token terms / (rollouts x rollout_sum_constant)."""
    rollout_sum_constant: float = Field(default=1024.0, gt=0)
    min_group: int = Field(default=2, ge=2)
    """Groups with fewer rewards are not trained."""
    normalise_std: bool = False
    """Divide advantages by the group's population standard deviation (GRPO as published)."""
    std_floor: float = Field(default=1e-2, gt=0)
    untrained: tuple[EndedBy, ...] = ()
    """Rollouts that ended so keep their reward in the baseline but are not trained, e.g. ("context_full",)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A session that is over, with its rows."""

    session: Session
    rows: tuple[TokenRow, ...]

    @property
    def rollout_id(self) -> str:
        return self.session.rollout_id or self.session.session_id

    @property
    def reward(self) -> float:
        """Only for an eligible rollout."""
        grade = self.session.grade
        if grade is None or grade.reward is None:
            raise TrainerError(f"session {self.session.session_id} has no reward")
        return grade.reward

    @property
    def trained_tokens(self) -> int:
        return sum(sum(row.loss_mask) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """A batch, and what became of every session that was offered."""

    batch: Batch
    """Rows of every rollout that has a reward; weight 0 where it is not trained. Denominator 0: nothing to train."""
    unused: Mapping[str, str]
    """session_id -> why no token of it is trained: open, infra, ungraded, grader_error, superseded, no_group,
    incomplete_group, zero_variance, no_trained_tokens, or how it ended (`untrained`)."""
    trained: tuple[str, ...]
    """session_ids."""
    counts: Mapping[str, int]
    """groups, groups_zero_variance, groups_incomplete, rollouts, rollouts_trained, unused_<reason>."""


def assign(rollouts: Sequence[Rollout], config: CreditConfig) -> Credit:
    """Baseline = mean reward over the rollouts of the group that have one; advantage = reward - baseline, shared by
    all rows of the rollout. Raises TrainerError where a session comes twice or a group mixes tasks or harnesses."""
    unused = _without_reward(rollouts)
    eligible = [rollout for rollout in rollouts if rollout.session.session_id not in unused]
    advantages: dict[str, float] = {}
    counts: Counter[str] = Counter(rollouts=len(rollouts), groups=0, groups_zero_variance=0, groups_incomplete=0)
    for group_id, members in sorted(_by_group(eligible).items()):
        advantages |= _group_advantages(group_id, members, config, unused, counts)
    trained = [rollout for rollout in eligible if rollout.session.session_id not in unused]
    counts["rollouts_trained"] = len(trained)
    counts.update(f"unused_{reason}" for reason in unused.values())
    return Credit(
        batch=_batch(eligible, trained, advantages, config),
        unused=unused,
        trained=tuple(sorted(rollout.session.session_id for rollout in trained)),
        counts=counts,
    )


def group_advantages(rewards: Sequence[float], *, normalise_std: bool = False, std_floor: float = 1e-2) -> list[float]:
    """reward - mean, in exact two-pass float64; exactly 0.0 for a group whose rewards are equal.

    With `normalise_std` divided by max(population std, std_floor), so that |advantage| <= sqrt(n - 1)
    (GRPO, arXiv 2402.03300, eq. 3; the floor is ours).
    """
    if max(rewards) - min(rewards) <= _SAME * max(1.0, max(map(abs, rewards))):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not normalise_std:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / len(rewards))
    return [value / max(std, std_floor) for value in centred]


def _without_reward(rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Sessions that enter neither loss nor baseline, with the reason."""
    ids = Counter(rollout.session.session_id for rollout in rollouts)
    if twice := [session_id for session_id, number in ids.items() if number > 1]:
        raise TrainerError(f"session {twice[0]} was offered {ids[twice[0]]} times")
    unused = {r.session.session_id: reason for r in rollouts if (reason := _no_reward(r.session))}
    latest: dict[tuple[str, str], Rollout] = {}
    for rollout in sorted(rollouts, key=lambda r: (r.session.attempt, r.session.session_id)):
        if rollout.session.session_id in unused:
            continue
        key = (rollout.session.group_id, rollout.rollout_id)
        if earlier := latest.get(key):
            unused[earlier.session.session_id] = "superseded"
        latest[key] = rollout
    return unused


def _no_reward(session: Session) -> str:
    if session.ending is None:
        return "open"
    if session.ending.ended_by is EndedBy.INFRA:
        return "infra"
    if session.grade is None:
        return "ungraded"
    return "" if session.grade.kind == "reward" else session.grade.kind


def _by_group(rollouts: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    groups: dict[str, list[Rollout]] = {}
    for rollout in sorted(rollouts, key=lambda r: r.session.session_id):
        groups.setdefault(rollout.session.group_id, []).append(rollout)
    return groups


def _group_advantages(
    group_id: str, members: list[Rollout], config: CreditConfig, unused: dict[str, str], counts: Counter[str]
) -> dict[str, float]:
    """session_id -> advantage; adds the group's untrained sessions to `unused`, and counts the group."""
    names = [rollout.session.session_id for rollout in members]
    if not group_id:
        unused |= dict.fromkeys(names, "no_group")
        return dict.fromkeys(names, 0.0)
    kinds = sorted({(rollout.session.task_id, rollout.session.harness) for rollout in members})
    if len(kinds) > 1:
        raise TrainerError(f"group {group_id} mixes tasks or harnesses: {kinds[0]} and {kinds[1]}")
    counts["groups"] += 1
    if len(members) < config.min_group:
        counts["groups_incomplete"] += 1
        unused |= dict.fromkeys(names, "incomplete_group")
        return dict.fromkeys(names, 0.0)
    rewards = [rollout.reward for rollout in members]
    values = group_advantages(rewards, normalise_std=config.normalise_std, std_floor=config.std_floor)
    if not any(values):
        counts["groups_zero_variance"] += 1
        unused |= dict.fromkeys(names, "zero_variance")
    else:
        unused |= {r.session.session_id: reason for r in members if (reason := _not_trained(r, config))}
    return dict(zip(names, values, strict=True))


def _not_trained(rollout: Rollout, config: CreditConfig) -> str:
    ending = rollout.session.ending
    if ending is not None and ending.ended_by in config.untrained:
        return ending.ended_by.value
    return "" if rollout.trained_tokens else "no_trained_tokens"


def _batch(
    eligible: Sequence[Rollout], trained: Sequence[Rollout], advantages: Mapping[str, float], config: CreditConfig
) -> Batch:
    weights = {r.session.session_id: _weight(r, config) for r in trained}
    rows = [
        TrainingRow(
            row=row,
            rollout_id=rollout.rollout_id,
            group_id=rollout.session.group_id,
            reward=rollout.reward,
            advantage=advantages[rollout.session.session_id],
            weight=weights.get(rollout.session.session_id, 0.0),
        )
        for rollout in eligible
        for row in rollout.rows
    ]
    rows.sort(key=lambda r: (r.group_id, r.rollout_id, r.row.session_id, r.row.branch))
    return Batch(rows=tuple(rows), denominator=_denominator(trained, config))


def _weight(rollout: Rollout, config: CreditConfig) -> float:
    return 1.0 / rollout.trained_tokens if config.aggregation == "rollout-mean" else 1.0


def _denominator(trained: Sequence[Rollout], config: CreditConfig) -> float:
    if config.aggregation == "token-mean":
        return float(sum(rollout.trained_tokens for rollout in trained))
    constant = config.rollout_sum_constant if config.aggregation == "rollout-sum" else 1.0
    return len(trained) * constant
