"""The parts of the config that the loops own: warm start, GRPO, evaluation."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SftConfig(BaseModel):
    """[trainer.sft]: the warm start on exact rows of scripted-teacher rollouts through the same harness."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=3, ge=0)
    rollouts_per_step: int = Field(default=16, ge=1)
    """Demonstrations of one optimizer step, drawn without replacement until all were used."""
    families: tuple[str, ...] | None = None
    """Only training tasks whose metadata.family is named; None: all."""


class GrpoConfig(BaseModel):
    """[trainer.grpo]: groups of rollouts of one task, baseline = their mean reward, one optimizer step a batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=15, ge=0)
    groups_per_step: int = Field(default=4, ge=1)
    group_size: int = Field(default=8, ge=2)


class EvaluationConfig(BaseModel):
    """[evaluation]: held-out tasks, sampled as in training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples_per_task: int = Field(default=3, ge=1)
    temperature: float = Field(default=1.0, ge=0)


Phase = Literal["sft", "grpo", "evaluation"]
