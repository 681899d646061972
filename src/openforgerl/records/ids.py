"""The one rule for ids."""

from __future__ import annotations

import re

_ID = re.compile(r"[a-z0-9-]{1,63}")


def check_id(name: str, value: str) -> None:
    """Ids travel in URLs, pod names and file names, and veRL splits on "_". Raises ValueError."""
    if not _ID.fullmatch(value):
        raise ValueError(f"{name} {value!r} must match [a-z0-9-]{{1,63}}")
