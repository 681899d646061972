"""What samples: ids in, ids and log-probs out, with the policy version of every run of tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from openforgerl.records import GenerateChunk, GenerateRequest


class Engine(Protocol):
    """A policy that can be sampled.

    Closing the generator of a call (aclose) cancels that call in the engine. Log-probs are those of the distribution
    that was sampled. A sampled end-of-turn id is part of the output.
    """

    @property
    def context_length(self) -> int:
        """Most ids of prompt + answer."""
        ...

    @property
    def policy_version(self) -> int: ...

    @property
    def logprob_kind(self) -> str:
        """What its log-probs are: "sampled" (log softmax(logits / temperature)), "raw" (log softmax(logits), whatever
        the temperature), "scripted" (nobody's), or "none" (its answers are text: it gives `said`, never ids)."""
        ...

    @property
    def enforces_schema(self) -> bool:
        """Whether `output_schema` of a request holds for the text of its answer; otherwise it is passed over."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        """Chunks; the last one has `finish`. Raises EngineError, EngineAborted."""
        ...

    async def load_weights(self, folder: Path, policy_version: int) -> None:
        """A Hugging Face folder becomes the policy, in place; no cache of old weights survives. Raises EngineError."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Counted(Protocol):
    """An engine that counts what happened to its calls; the metrics show it."""

    @property
    def counters(self) -> Mapping[str, int]: ...
