"""[rollout]: how many at once, how long, how often again."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RolloutConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: int = Field(default=8, ge=1)
    """Attempts that run at once."""
    deadline_s: float = Field(default=120.0, gt=0)
    """From the start of the set-up to the end of the agent; a task's own agent timeout may be shorter."""
    infra_retries: int = Field(default=2, ge=0)
    """Fresh attempts after infrastructure failures, per rollout."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of one answer."""
    temperature: float = Field(default=1.0, ge=0)
