"""What a loop tells whoever watches it; the terminal view is one listener."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from openforgerl.records import Session


class Listener(Protocol):
    def phase(self, name: str, rollouts: int) -> None:
        """A batch of rollouts begins: `name` e.g. "heldout base", "sft", "grpo 3/15"."""
        ...

    def attempt(self, session: Session) -> None:
        """An attempt ended; it is sealed and graded."""
        ...

    def step(self, name: str, metrics: Mapping[str, float | int | str]) -> None:
        """A step or an evaluation is committed."""
        ...


class Silent:
    """Tells nobody."""

    def phase(self, name: str, rollouts: int) -> None: ...

    def attempt(self, session: Session) -> None: ...

    def step(self, name: str, metrics: Mapping[str, float | int | str]) -> None: ...
