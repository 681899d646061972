"""The slots' memory: what is kept when they grow, and how much there may be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from openforgerl.engines.local_cache import SlotCache

HEADS, DIM = 2, 4


def cache(slots: int = 4) -> SlotCache:
    return SlotCache(slots=slots, layers=3, heads=HEADS, head_dim=DIM, dtype=torch.float32)


def some(positions: int) -> Tensor:
    return torch.randn(3, 2, HEADS, positions, DIM)


def test_what_is_written_is_read_after_growing_and_shrinking() -> None:
    made, kept = cache(), [some(5), some(9)]
    assert made.fit(2, 10, limit=4096)
    for slot, content in enumerate(kept):
        made.write(slot, 0, content)
    assert made.fit(3, 700, limit=4096)
    assert made.fit(2, 10, limit=100)
    assert made.tokens <= 100
    for slot, content in enumerate(kept):
        assert torch.equal(made.read(slot, 0, content.shape[-2]), content)


def test_it_refuses_more_than_the_limit_and_changes_nothing() -> None:
    made, content = cache(), some(10)
    assert made.fit(1, 10, limit=30)
    made.write(0, 0, content)
    assert not made.fit(4, 10, limit=30)
    assert torch.equal(made.read(0, 0, 10), content)


def test_memory_that_one_long_row_needed_is_given_back_when_it_has_left() -> None:
    made = cache()
    assert made.fit(4, 1000, limit=4096)
    assert made.tokens == 4 * 1024
    assert made.fit(2, 100, limit=4096)
    assert made.tokens == 2 * 256


@pytest.fixture
def empty_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # with it, torch fills new memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("empty_memory_is_nan")
def test_a_slot_that_was_never_used_holds_zeros() -> None:
    """Masked positions meet their values: garbage there could be NaN."""
    made = cache()
    for rows in (1, 3, 4):
        assert made.fit(rows, 300 * rows, limit=9000)
        for slot in range(rows):
            assert torch.equal(made.read(slot, 0, 300 * rows), torch.zeros(3, 2, HEADS, 300 * rows, DIM))


def test_moving_a_row_copies_its_positions() -> None:
    made, content = cache(), some(7)
    assert made.fit(3, 7, limit=4096)
    made.write(2, 0, content)
    made.move(2, 0, 7)
    assert torch.equal(made.read(0, 0, 7), content)


def test_clearing_gives_all_memory_back() -> None:
    made = cache()
    assert made.fit(4, 1000, limit=4096)
    made.clear()
    assert made.tokens == 0
