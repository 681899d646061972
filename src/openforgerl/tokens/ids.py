"""Token ids as arrays: four bytes each, compared by memory blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


def as_ids(values: Sequence[int]) -> Ids:
    return np.array(values, dtype=np.int32)


def joined(parts: Sequence[Ids]) -> Ids:
    return np.concatenate(parts) if parts else as_ids(())


def common_length(left: Ids, right: Ids) -> int:
    """Number of leading ids that both have."""
    length = min(len(left), len(right))
    left, right = left[:length], right[:length]
    return length if np.array_equal(left, right) else int(np.argmax(left != right))
