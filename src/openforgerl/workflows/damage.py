"""What a store holds and no law explains is told in one line, with its session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from openforgerl.errors import StoreError


@contextmanager
def naming_damage(session_id: str) -> Iterator[None]:
    """Around what builds rows of recorded calls. Raises StoreError."""
    try:
        yield
    except ValueError as error:
        raise StoreError(f"session {session_id} is damaged, its calls do not fit together: {error}") from error
