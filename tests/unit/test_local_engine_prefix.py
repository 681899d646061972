"""The prefix tree gives what a naive list of retained sequences would, and holds each position once."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openforgerl.engines.local_prefix import PrefixTree, common

Ids = tuple[int, ...]


def kv(ids: Ids) -> Tensor:
    """A position's key depends on all ids up to it, as in a model."""
    keys = [hash(ids[: at + 1]) % 100_003 for at in range(len(ids))]
    return torch.tensor(keys, dtype=torch.long).reshape(1, -1, 1)


def retain(tree: PrefixTree, ids: Ids) -> None:
    tree.insert(ids, lambda start, stop: kv(ids)[:, start:stop].clone())


def matched(tree: PrefixTree, ids: Ids) -> int:
    """How much is found; what is found is right."""
    pieces = tree.match(ids)
    length = sum(piece.shape[-2] for piece in pieces)
    if pieces:
        assert torch.equal(torch.cat(pieces, dim=-2), kv(ids)[:, :length])
    return length


SEQUENCES = st.lists(st.integers(0, 2), max_size=9).map(tuple)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("retain"), SEQUENCES),
        st.tuples(st.just("match"), SEQUENCES),
        st.tuples(st.just("shrink"), st.integers(-3, 25)),
    ),
    max_size=25,
)


@given(ACTS)
@settings(max_examples=200, deadline=None)
def test_it_finds_the_longest_retained_prefix_and_forgets_no_more_than_asked(acts: list[tuple[str, Ids | int]]) -> None:
    tree, held = PrefixTree(), set[Ids]()  # every prefix whose last position is held
    for act, value in acts:
        if isinstance(value, int):
            dropped = tree.shrink(value)
            kept = {ids for ids in held if matched(tree, ids) == len(ids)}
            assert tree.tokens == len(kept) <= max(value, 0)
            assert dropped == len(held) - len(kept)
            assert dropped == 0 or tree.tokens == max(value, 0)
            held = kept
        elif act == "retain":
            retain(tree, value)
            held |= {value[: at + 1] for at in range(len(value))}
            assert tree.tokens == len(held)
        else:
            assert matched(tree, value) == max((len(ids) for ids in held if value[: len(ids)] == ids), default=0)


def test_only_positions_that_are_not_held_are_copied() -> None:
    tree, copied = PrefixTree(), list[tuple[int, int]]()

    def copy(start: int, stop: int) -> Tensor:
        copied.append((start, stop))
        return kv((1, 2, 3, 4, 5, 6))[:, start:stop].clone()

    tree.insert((1, 2, 3, 4), copy)
    tree.insert((1, 2, 3, 4), copy)
    tree.insert((1, 2), copy)
    tree.insert((1, 2, 3, 4, 5, 6), copy)
    assert copied == [(0, 4), (4, 6)]


def test_what_was_used_last_stays_longest() -> None:
    tree = PrefixTree()
    for branch in (5, 6, 7):
        retain(tree, (1, 2, branch, branch))
    matched(tree, (1, 2, 5, 5))
    tree.shrink(4)
    assert [matched(tree, (1, 2, branch, branch)) for branch in (5, 6, 7)] == [4, 2, 2]


def test_a_leaf_that_is_too_long_loses_its_end_and_keeps_its_beginning() -> None:
    tree = PrefixTree()
    retain(tree, tuple(range(10)))
    assert tree.shrink(7) == 3
    assert matched(tree, tuple(range(10))) == 7


def test_dropped_positions_give_their_memory_back() -> None:
    tree, ids = PrefixTree(), tuple(range(100))
    retain(tree, ids)
    retain(tree, (*ids[:50], -1))
    tree.shrink(20)
    held = tree.match(ids)
    assert sum(piece.untyped_storage().nbytes() for piece in held) == 20 * 8


def test_nothing_is_found_after_clear() -> None:
    tree = PrefixTree()
    retain(tree, (1, 2, 3))
    tree.clear()
    assert (matched(tree, (1, 2, 3)), tree.tokens) == (0, 0)


@given(SEQUENCES, SEQUENCES)
def test_common_is_the_length_of_the_longest_common_prefix(left: Ids, right: Ids) -> None:
    length = common(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == len(left) == len(right)
