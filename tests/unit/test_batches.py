"""Which tasks a step draws: every task once an epoch, and the same again after a resume."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from openforgerl.workflows.batches import draw

ITEMS = st.lists(st.integers(), min_size=1, max_size=12, unique=True)


@given(items=ITEMS, count=st.integers(1, 15), steps=st.integers(1, 12), seed=st.integers(0, 5))
def test_draws_go_through_whole_shuffles(items: list[int], count: int, steps: int, seed: int) -> None:
    drawn = [item for step in range(steps) for item in draw(items, count, seed=seed, step=step)]
    assert len(drawn) == count * steps
    for start in range(0, len(drawn) - len(items) + 1, len(items)):
        assert sorted(drawn[start : start + len(items)]) == sorted(items)
    times = Counter(drawn)
    assert max(times.values()) - min(times.get(item, 0) for item in items) <= 1


@given(items=ITEMS, count=st.integers(1, 15), step=st.integers(0, 40), seed=st.integers(0, 5))
def test_a_step_draws_the_same_again(items: list[int], count: int, step: int, seed: int) -> None:
    assert draw(items, count, seed=seed, step=step) == draw(items, count, seed=seed, step=step)


def test_another_seed_draws_in_another_order() -> None:
    items = list(range(30))
    assert draw(items, 30, seed=0, step=0) != draw(items, 30, seed=1, step=0)
