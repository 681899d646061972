"""Laws 1 and 2 over random trees of calls, and that planted faults are found."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_laws import assert_laws, assert_side_calls_are_masked, assert_unrelated_calls_do_not_meet

import openforgerl.trajectories as trajectories
from openforgerl.records import MaskReason, Segment, TokenRow
from random_sessions import random_session

chances = st.integers(0, 2**48).map(random.Random)


@settings(max_examples=300, deadline=None)
@given(chances)
def test_every_sampled_token_is_owned_once_behind_its_prompt(chance: random.Random) -> None:
    assert_laws(trajectories, random_session(chance), chance)


@settings(max_examples=100, deadline=None)
@given(chances)
def test_unrelated_calls_do_not_meet(chance: random.Random) -> None:
    assert_unrelated_calls_do_not_meet(trajectories, chance)


@given(chances)
def test_side_calls_are_masked_wherever_they_stand(chance: random.Random) -> None:
    assert_side_calls_are_masked(trajectories, chance)


def changed(row: TokenRow, fault: str, chance: random.Random) -> TokenRow:
    """The row with one fault in it."""
    mine = [place for place, segment in enumerate(row.segments) if segment.owned]
    place = chance.choice(mine)
    segment = row.segments[place]
    at = chance.randrange(segment.start, segment.stop)

    def put(values: tuple[object, ...], value: object) -> tuple[object, ...]:
        return (*values[:at], value, *values[at + 1 :])

    def swap(**fields: object) -> tuple[Segment, ...]:
        return (*row.segments[:place], replace(segment, **fields), *row.segments[place + 1 :])

    match fault:
        case "not owned":
            return replace(row, segments=swap(owned=False))
        case "one to the right":
            return replace(row, segments=swap(start=segment.start + 1, stop=segment.stop + 1))
        case "one short":
            return replace(row, segments=swap(stop=segment.stop - 1))
        case "other id":
            return replace(row, token_ids=put(row.token_ids, 99))
        case "other log-prob":
            return replace(row, logprobs=put(row.logprobs, -9.0))
        case "other version":
            return replace(row, policy_versions=put(row.policy_versions, 9))
        case "context in an answer":
            reasons = put(row.mask_reasons, MaskReason.CONTEXT)
            return replace(row, loss_mask=put(row.loss_mask, 0), mask_reasons=reasons)
        case "other session":
            return replace(row, session_id="s2")
    return replace(
        row,
        token_ids=(*row.token_ids, 1),
        loss_mask=(*row.loss_mask, 1),
        mask_reasons=(*row.mask_reasons, None),
        logprobs=(*row.logprobs, -1.0),
        policy_versions=(*row.policy_versions, 1),
    )


FAULTS = (
    "not owned", "one to the right", "one short", "other id", "other log-prob", "other version",
    "context in an answer", "other session", "a token more",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@given(chance=chances)
@settings(max_examples=50, deadline=None)
def test_a_fault_in_a_finished_row_is_found(chance: random.Random, fault: str) -> None:
    calls = random_session(chance).calls
    rows = list(trajectories.rows(calls))
    for place, row in enumerate(rows):
        wrong = [*rows[:place], changed(row, fault, chance), *rows[place + 1 :]]
        assert wrong != rows
        assert trajectories.check_rows(calls, wrong)


@given(chances)
def test_rows_that_are_missing_twice_or_of_another_session_are_found(chance: random.Random) -> None:
    calls = random_session(chance).calls
    rows = trajectories.rows(calls)
    for row in rows:
        assert trajectories.check_rows(calls, [other for other in rows if other is not row])
        assert trajectories.check_rows(calls, [*rows, row])
        fewer = [call for call in calls if call.call_id != row.segments[-1].call_id]
        with suppress(ValueError):  # another call's prompt leans on the one that is gone
            assert trajectories.check_rows(fewer, rows)
