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


@given(kinds=st.integers(1, 6), each=st.integers(1, 5), steps=st.integers(1, 12), seed=st.integers(0, 5))
def test_a_step_of_as_many_items_as_kinds_has_each_kind_once(kinds: int, each: int, steps: int, seed: int) -> None:
    items = [(kind, number) for kind in range(kinds) for number in range(each)]
    drawn = [draw(items, kinds, seed=seed, step=step, kind=lambda item: str(item[0])) for step in range(steps)]
    assert all({kind for kind, _ in step} == set(range(kinds)) for step in drawn)
    for start in range(0, steps - each + 1, each):
        assert sorted(item for step in drawn[start : start + each] for item in step) == items


def test_kinds_of_unequal_size_are_all_drawn() -> None:
    drawn = draw("aaabcc", 6, seed=0, step=0, kind=str)
    assert Counter(drawn) == Counter("aaabcc")
    assert set(drawn[:3]) == set("abc")
