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


_ONE_EACH: dict[int, int] = {}


def shared_ints(ids: Ids) -> tuple[int, ...]:
    """Python's ints, one object for equal ids: a tuple of them costs 8 bytes an id and not 40."""
    return tuple([_ONE_EACH.setdefault(token_id, token_id) for token_id in ids.tolist()])


def common_length(left: Ids, right: Ids) -> int:
    """Number of leading ids that both have."""
    length = min(len(left), len(right))
    differing = left[:length] != right[:length]
    place = int(differing.argmax()) if length else 0
    return place if length and differing[place] else length
