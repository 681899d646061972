"""Packs: every shared prefix once, every token behind exactly its own ids, whatever the budget and the order."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from openforgerl.trainers.packing import Pack, pack

rows_of_few_ids = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=8)


def ancestors(one: Pack) -> NDArray[np.bool_]:
    """(T, T): what each node sees, by the branches, from which attention is computed."""
    mask = np.zeros((len(one), len(one)), dtype=np.bool_)
    for branch in one.branches:
        own = slice(branch.start, branch.stop)
        for start, stop in branch.context:
            mask[own, start:stop] = True
        mask[own, own] = np.tri(branch.stop - branch.start, dtype=np.bool_)
    return mask


def check_pack(one: Pack, rows: list[list[int]]) -> None:
    mask = ancestors(one)
    for index, path in one.paths.items():
        assert one.ids[path].tolist() == rows[index]
        assert one.positions[path].tolist() == list(range(len(path)))
        assert one.parents[path].tolist() == [-1, *path[:-1].tolist()]
        for depth, node in enumerate(path):
            assert np.flatnonzero(mask[node]).tolist() == sorted(path[: depth + 1].tolist())


@given(rows=rows_of_few_ids, budget=st.integers(1, 40))
def test_every_token_sees_exactly_its_own_prefix(rows: list[list[int]], budget: int) -> None:
    packs = pack(rows, budget=budget)
    assert sorted(index for one in packs for index in one.paths) == list(range(len(rows)))
    assert sum(map(len, packs)) <= sum(map(len, rows))
    for one in packs:
        check_pack(one, rows)
        longest = max(len(path) for path in one.paths.values())
        assert len(one) <= max(budget, longest * 5 // 4)


@given(rows=rows_of_few_ids)
def test_without_a_budget_every_distinct_prefix_stands_once(rows: list[list[int]]) -> None:
    prefixes = {tuple(row[: n + 1]) for row in rows for n in range(len(row))}
    assert sum(len(one) for one in pack(rows, budget=10_000)) == len(prefixes)


@given(rows=rows_of_few_ids, seed=st.integers(0, 10))
def test_the_order_of_the_rows_changes_nothing(rows: list[list[int]], seed: int) -> None:
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    straight, shuffled = pack(rows, budget=20), pack([rows[index] for index in order], budget=20)
    assert [one.ids.tolist() for one in straight] == [one.ids.tolist() for one in shuffled]
    assert [one.branches for one in straight] == [one.branches for one in shuffled]


def test_unshared_rows_are_causal_chains_of_their_own() -> None:
    packs = pack([[1, 2, 3], [1, 2, 4], [1, 2, 3]], budget=100, share=False)
    assert [one.ids.tolist() for one in packs] == [[1, 2, 3], [1, 2, 3], [1, 2, 4]]
    assert all(len(one.branches) == 1 for one in packs)


def test_rows_longer_than_the_budget_still_share_their_long_prefix() -> None:
    prefix = list(range(1000))
    packs = pack([[*prefix, 2000 + index] for index in range(16)], budget=100)
    assert [len(one) for one in packs] == [1016]


def test_an_empty_row_is_in_no_pack() -> None:
    assert [one.paths.keys() for one in pack([[], [1]], budget=10)] == [{1}]
