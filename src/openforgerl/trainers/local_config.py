"""Settings of the local trainer; imports nothing heavy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LocalTrainerConfig(BaseModel):
    """`[trainer]`: AdamW in fp32 in this process."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(default=2e-5, gt=0)
    """Learning rate of policy steps."""
    sft_lr: float = Field(default=1e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the whole gradient."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    importance_cap: float = Field(default=2.0, gt=0)
    """Truncation of proximal / behaviour."""
    max_gap: float | None = Field(default=1e-4, gt=0)
    """A policy step whose largest |engine - trainer| log-prob exceeds this is refused; None only measures it.

    A row that is near it is measured a second time with the trainer in float64."""
    pack: bool = True
    """Forward shared prefixes once. Models without full attention everywhere get separate rows anyway."""
    token_budget: int = Field(default=2048, ge=1)
    """Tokens of one packed sequence; bounds memory, does not change the gradient."""
    logit_chunk: int = Field(default=512, ge=1)
    """Positions whose logits exist at one time."""
