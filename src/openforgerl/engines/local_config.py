"""Settings of the local engine; imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LocalEngineConfig(BaseModel):
    """[engine] of kind "local"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Literal["float32", "bfloat16"] = "float32"
    """float32 keeps log-probs within 1e-4 of the trainer's; bfloat16 does not."""
    context_length: int | None = Field(default=None, ge=2)
    """Most ids of prompt + answer; None: what the model was made for."""
    max_batch: int = Field(default=32, ge=1)
    """Calls decoded together; more wait, first come, first served."""
    max_tokens_in_cache: int = Field(default=65_536, ge=2)
    """Positions of keys and values in memory, padding and retained prefixes included (SmolLM2-135M: 46 KB each)."""
    prefill_tokens: int = Field(default=512, ge=1)
    """Most prompt ids computed in one step, beside one id for every row that is being sampled."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of torch; None: as the process is set up."""
    update_drain_s: float = Field(default=60.0, ge=0)
    """How long a weight update waits for calls in flight. What still runs then goes on with the new weights: its
    context is computed anew, and its later chunks carry the new version."""
    close_timeout_s: float = Field(default=30.0, gt=0)
