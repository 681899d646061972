"""What turns rows into a new policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from openforgerl.records import Batch, Receipt, TokenRow, Update


class Trainer(Protocol):
    """A policy in training. Each step is one optimizer step and one new policy version, or TrainerError and nothing."""

    @property
    def policy_version(self) -> int: ...

    def sft_step(self, rows: Sequence[TokenRow]) -> Update:
        """Mean negative log-likelihood of the tokens with mask 1."""
        ...

    def policy_step(self, batch: Batch) -> tuple[Update, tuple[Receipt, ...]]:
        """The batch's policy loss; receipts, against the policy before the step, of the rows that were trained."""
        ...

    def receipts(self, rows: Sequence[TokenRow]) -> tuple[Receipt, ...]:
        """Engine against trainer, for rows of the current policy version; one per row, in order."""
        ...

    def save(self, folder: Path) -> None:
        """A Hugging Face folder, whole or not at all."""
        ...

    def save_state(self, folder: Path) -> None:
        """What `load_state` needs, beside the weights, to go on as if nothing had happened."""
        ...

    def load_state(self, folder: Path) -> None: ...
