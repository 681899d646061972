"""Rows of the shapes that sessions have in the field."""

import pytest

from openforgerl.records import (
    Completion,
    Delivered,
    MaskReason,
    PromptDelta,
    RecordedCall,
    Sampling,
    Segment,
    VersionRun,
)
from openforgerl.trajectories import Accounting, accounting, check_rows, parents, prompt_ids, rows
from recorded_calls import recorded

CONTEXT = MaskReason.CONTEXT


def after(parent: str, cut: int, *new: int) -> PromptDelta:
    return PromptDelta(parent=parent, cut=cut, new_ids=new)


def test_no_calls_are_no_rows() -> None:
    assert rows(()) == ()
    assert accounting((), ()) == Accounting(sampled=0, trained_mask=0, masked={})
    assert check_rows((), ()) == ()


def test_a_growing_conversation_is_one_row() -> None:
    calls = (recorded(0, (1, 2), (3, 4)), recorded(1, after("c0", 4, 5), (6,)))
    (row,) = rows(calls)
    assert row.token_ids == (1, 2, 3, 4, 5, 6)
    assert row.loss_mask == (0, 0, 1, 1, 0, 1)
    assert row.mask_reasons == (CONTEXT, CONTEXT, None, None, CONTEXT, None)
    assert row.logprobs == (0.0, 0.0, *calls[0].logprobs, 0.0, *calls[1].logprobs)
    assert row.policy_versions == (-1, -1, 3, 3, -1, 3)
    assert row.segments == (
        Segment(call_id="c0", start=2, stop=4, owned=True),
        Segment(call_id="c1", start=5, stop=6, owned=True),
    )
    assert accounting(calls, (row,)) == Accounting(sampled=3, trained_mask=3, masked={})


def test_a_branch_is_a_row_whose_shared_turns_are_context() -> None:
    calls = (recorded(0, (1,), (2,)), recorded(1, after("c0", 2, 3), (4,)), recorded(2, after("c0", 2, 5), (6,)))
    first, second = rows(calls)
    assert (first.branch, first.loss_mask) == (0, (0, 1, 0, 1))
    assert (second.branch, second.loss_mask) == (1, (0, 0, 0, 1))
    assert second.segments[0] == Segment(call_id="c0", start=1, stop=2, owned=False)
    assert second.logprobs[1] == 0.0
    assert second.policy_versions[1] == -1


def test_two_branches_that_interleave_keep_their_own_parents() -> None:
    """Main and sub-agent with equal first messages, A1 B1 A2 B2."""
    calls = (
        recorded(0, (1, 2), (3,)),
        recorded(1, (1, 2), (4,)),
        recorded(2, after("c0", 3, 5), (6,)),
        recorded(3, after("c1", 3, 5), (7,)),
    )
    assert parents(calls) == {"c0": None, "c1": None, "c2": "c0", "c3": "c1"}
    assert [row.token_ids for row in rows(calls)] == [(1, 2, 3, 5, 6), (1, 2, 4, 5, 7)]


def test_of_equal_answers_to_one_prompt_the_earliest_is_continued() -> None:
    calls = (recorded(0, (1,), (2,)), recorded(1, (1,), (2,)), recorded(2, (1, 2, 3), (4,)))
    assert parents(calls)["c2"] == "c0"
    assert [row.token_ids for row in rows(calls)] == [(1, 2, 3, 4), (1, 2)]
    assert accounting(calls, rows(calls)).trained_mask == 3


def test_a_cut_turn_that_was_kept_is_context_and_its_own_row_is_masked() -> None:
    cut = recorded(
        0, (1,), (2, 3, 4), completion=Completion.CLIENT_ABORTED, delivered=Delivered(state="prefix", count=2)
    )
    calls = (cut, recorded(1, after("c0", 3, 9), (5,)))
    own, kept = rows(calls)
    assert (own.token_ids, own.loss_mask) == ((1, 2, 3, 4), (0, 0, 0, 0))
    assert own.mask_reasons[1:] == (MaskReason.CLIENT_ABORTED,) * 3
    assert (kept.token_ids, kept.loss_mask) == ((1, 2, 3, 9, 5), (0, 0, 0, 0, 1))
    assert [segment.call_id for segment in kept.segments] == ["c1"]
    assert accounting(calls, (own, kept)) == Accounting(
        sampled=4, trained_mask=1, masked={MaskReason.CLIENT_ABORTED: 3}
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"completion": Completion.CLIENT_ABORTED}, MaskReason.CLIENT_ABORTED),
        ({"completion": Completion.ENGINE_ABORTED}, MaskReason.ENGINE_ABORTED),
        ({"completion": Completion.ERROR}, MaskReason.CALL_ERROR),
        ({"completion": Completion.LATE}, MaskReason.LATE),
        ({"sampling_used": Sampling(temperature=1.0, top_p=0.9)}, MaskReason.CHANGED_DISTRIBUTION),
        ({"sampling_used": Sampling(temperature=0.0)}, MaskReason.CHANGED_DISTRIBUTION),
        ({"logprob_kind": "raw"}, MaskReason.CHANGED_DISTRIBUTION),
        ({"tool_choice": "required"}, MaskReason.CHANGED_DISTRIBUTION),
        ({"tool_choice": "bash"}, MaskReason.CHANGED_DISTRIBUTION),
        ({"tool_choice": "bash", "completion": Completion.LATE}, MaskReason.CHANGED_DISTRIBUTION),
        ({"tool_choice": "none"}, None),
        ({"sampling_used": Sampling(temperature=0.5)}, None),
        ({"sampling_used": Sampling()}, None),
    ],
)
def test_a_call_is_masked_for_its_own_reason(changed: dict[str, object], reason: MaskReason | None) -> None:
    calls = (recorded(0, (1,), (2,), **changed),)
    (row,) = rows(calls)
    assert row.mask_reasons[-1] is reason
    assert check_rows(calls, (row,)) == ()


def test_a_row_has_one_temperature_and_masks_what_was_sampled_at_another() -> None:
    hot = {"sampling_used": Sampling(temperature=1.3)}
    greedy = {"sampling_used": Sampling(temperature=0.0)}
    calls = (
        recorded(0, (1,), (2,), **greedy),
        recorded(1, after("c0", 2), (3,), **hot),
        recorded(2, after("c1", 3), (4,)),
    )
    (row,) = rows(calls)
    assert row.temperature == 1.3
    assert row.mask_reasons == (CONTEXT, MaskReason.CHANGED_DISTRIBUTION, None, MaskReason.CHANGED_DISTRIBUTION)


def test_a_row_has_one_kind_of_logprobs() -> None:
    calls = (recorded(0, (1,), (2,)), recorded(1, after("c0", 2), (3,), logprob_kind="scripted"))
    (row,) = rows(calls)
    assert row.logprob_kind == "sampled"
    assert row.mask_reasons[1:] == (None, MaskReason.CHANGED_DISTRIBUTION)


def test_a_call_that_sampled_nothing_makes_no_row_and_is_nobodys_parent() -> None:
    calls = (
        recorded(0, (1,), (2,)),
        recorded(1, after("c0", 2, 3), (), completion=Completion.ERROR),
        recorded(2, after("c0", 2, 3), (4,)),
        recorded(3, (9,), (), completion=Completion.ERROR),
    )
    assert parents(calls) == {"c0": None, "c1": "c0", "c2": "c0", "c3": None}
    (row,) = rows(calls)
    assert [segment.call_id for segment in row.segments] == ["c0", "c2"]
    assert accounting(calls, (row,)).balanced


def test_late_calls_extend_rows_and_never_renumber_them() -> None:
    """Receipts and uses of a session name its rows by number."""
    calls = [recorded(0, (1,), (2,)), recorded(1, after("c0", 2, 3), (4,)), recorded(2, after("c0", 2, 5), (6,))]
    before = rows(calls)
    late = recorded(3, after("c1", 4, 7), (8,), completion=Completion.LATE)
    grown, same = rows([*calls, late])
    assert grown.token_ids == (*before[0].token_ids, 7, 8)
    assert grown.loss_mask == (*before[0].loss_mask, 0, 0)
    assert same == before[1]


def test_versions_of_one_answer_stand_token_by_token() -> None:
    runs = (VersionRun(policy_version=3, count=1), VersionRun(policy_version=4, count=2))
    (row,) = rows([recorded(0, (1,), (2, 3, 4), versions=runs)])
    assert row.policy_versions == (-1, 3, 4, 4)


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([recorded(1, PromptDelta(parent="c9", cut=1, new_ids=()))], "call c1: the parent of its prompt, call c9"),
        ([recorded(0, (1,)), recorded(1, after("c0", 9))], "call c1: cut 9, but its parent has 3 ids"),
        ([recorded(0, (1,)), recorded(0, (1,), call_id="c1")], "two calls have index 0"),
        ([recorded(0, (1,)), recorded(1, (1,), call_id="c0")], "two calls have one id"),
        ([recorded(0, (1,)), recorded(1, (1,), session_id="s2")], "calls of two sessions"),
    ],
)
def test_calls_that_do_not_fit_together_are_named(calls: list[RecordedCall], named: str) -> None:
    for derive in (rows, prompt_ids, parents):
        with pytest.raises(ValueError, match=named):
            derive(calls)
