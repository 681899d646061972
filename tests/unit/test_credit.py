"""Credit: groups by id, failures out of baseline and denominator, one named reason for all that is not trained."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from openforgerl.errors import TrainerError
from openforgerl.records import EndedBy, Ending, Grade, MaskReason, Session, TokenRow
from openforgerl.trainers.credit import Credit, CreditConfig, Rollout, assign, group_advantages

REWARD = "reward"


def token_row(session_id: str, branch: int, trained: int, masked: int = 3) -> TokenRow:
    size = trained + masked
    return TokenRow(
        session_id=session_id,
        branch=branch,
        token_ids=tuple(range(size)),
        loss_mask=(0,) * masked + (1,) * trained,
        mask_reasons=(MaskReason.CONTEXT,) * masked + (None,) * trained,
        logprobs=(0.0,) * masked + (-1.0,) * trained,
        policy_versions=(-1,) * masked + (0,) * trained,
        logprob_kind="sampled",
        temperature=1.0,
        segments=(),
    )


def rollout(
    name: str,
    reward: float | None,
    *,
    ended_by: EndedBy | None = EndedBy.FINISHED,
    kind: str = REWARD,
    rows: Sequence[int] = (4,),
    attempt: int = 0,
    rollout_id: str = "",
    task: str | None = None,
    group: str | None = None,
) -> Rollout:
    """Named "<group>-<member>"; `rows`: trained tokens of each row; reward None with kind reward: never graded."""
    group = name.split("-")[0] if group is None else group
    grade = None
    if reward is not None:
        grade = Grade(kind="reward", reward=reward)
    elif kind != REWARD:
        grade = Grade(kind=kind, reason="the grader said so")  # type: ignore[arg-type]
    session = Session(
        session_id=name,
        task_id=task if task is not None else f"task-{group}",
        group_id=group,
        rollout_id=rollout_id or name,
        attempt=attempt,
        harness="react",
        ending=Ending(ended_by=ended_by, reason="because") if ended_by else None,
        grade=grade,
    )
    return Rollout(session=session, rows=tuple(token_row(name, branch, n) for branch, n in enumerate(rows)))


def group(name: str, rewards: Sequence[float | None]) -> list[Rollout]:
    return [rollout(f"{name}-{index}", reward) for index, reward in enumerate(rewards)]


def advantages(credit: Credit) -> dict[str, float]:
    return {row.row.session_id: row.advantage for row in credit.batch.rows}


def test_the_baseline_is_the_mean_of_the_rollouts_of_one_group() -> None:
    credit = assign([*group("a", [1, 0, 1, 0]), *group("b", [1, 1, 1, 0])], CreditConfig())
    values = advantages(credit)
    assert [values[f"a-{i}"] for i in range(4)] == [0.5, -0.5, 0.5, -0.5]
    assert [values[f"b-{i}"] for i in range(4)] == [0.25, 0.25, 0.25, -0.75]
    assert credit.batch.denominator == 8 * 4
    assert not credit.unused


def test_the_number_of_rows_of_a_rollout_moves_no_baseline_and_all_its_rows_share_the_advantage() -> None:
    few = assign([rollout("a-0", 1.0), rollout("a-1", 0.0)], CreditConfig())
    many = assign([rollout("a-0", 1.0, rows=(1, 5, 2, 8)), rollout("a-1", 0.0)], CreditConfig())
    assert {row.advantage for row in many.batch.rows if row.row.session_id == "a-0"} == {0.5}
    assert advantages(few) == advantages(many)
    assert many.batch.denominator == 1 + 5 + 2 + 8 + 4


def test_order_of_rollouts_and_rows_changes_nothing() -> None:
    rollouts = [*group("a", [1, 0, 1]), *group("b", [0.25, 0.75]), rollout("c-0", 1.0, rows=(3, 2))]
    shuffled = [Rollout(session=one.session, rows=tuple(reversed(one.rows))) for one in rollouts]
    random.Random(0).shuffle(shuffled)
    assert assign(shuffled, CreditConfig()) == assign(rollouts, CreditConfig())


@pytest.mark.parametrize("failures", [0, 1, 7, 8])
def test_infra_failures_leave_loss_baseline_and_denominator(failures: int) -> None:
    rewards = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0][failures:]
    failed = [rollout(f"a-{9 - i}", None, ended_by=EndedBy.INFRA) for i in range(failures)]
    other = group("b", [1, 0])
    credit, without = (assign([*group("a", rewards), *some, *other], CreditConfig()) for some in (failed, []))
    assert credit.batch == without.batch
    assert {credit.unused[one.session.session_id] for one in failed} <= {"infra"}
    assert credit.counts.get("unused_infra", 0) == failures
    if failures == 7:
        assert credit.unused["a-0"] == "incomplete_group"
        assert credit.counts["groups_incomplete"] == 1
        assert credit.batch.denominator == 8


def test_an_infra_failure_with_a_reward_is_still_out() -> None:
    credit = assign([*group("a", [1, 0]), rollout("a-2", 1.0, ended_by=EndedBy.INFRA)], CreditConfig())
    assert advantages(credit) == {"a-0": 0.5, "a-1": -0.5}
    assert credit.unused == {"a-2": "infra"}


def test_missing_grades_are_no_zeros_and_open_sessions_no_rollouts() -> None:
    odd = [
        rollout("a-2", None, kind="ungraded"),
        rollout("a-3", None, kind="grader_error"),
        rollout("a-4", None),
        rollout("a-5", 1.0, ended_by=None),
    ]
    credit = assign([*group("a", [1, 0]), *odd], CreditConfig())
    assert advantages(credit) == {"a-0": 0.5, "a-1": -0.5}
    assert credit.unused == {"a-2": "ungraded", "a-3": "grader_error", "a-4": "ungraded", "a-5": "open"}


def test_a_timeout_that_was_graded_counts() -> None:
    credit = assign([rollout("a-0", 1.0), rollout("a-1", 0.0, ended_by=EndedBy.AGENT_TIMEOUT)], CreditConfig())
    assert advantages(credit) == {"a-0": 0.5, "a-1": -0.5}
    assert credit.trained == ("a-0", "a-1")


@pytest.mark.parametrize("normalise", [False, True])
def test_a_group_without_variance_has_advantage_0_weight_0_and_no_part_in_the_denominator(normalise: bool) -> None:
    config = CreditConfig(normalise_std=normalise)
    credit = assign([*group("a", [0.35] * 7), *group("b", [1, 0, 0, 0])], config)
    same = [row for row in credit.batch.rows if row.group_id == "a"]
    assert {(row.advantage, row.weight) for row in same} == {(0.0, 0.0)}
    assert credit.batch.denominator == 4 * 4
    assert {credit.unused[f"a-{i}"] for i in range(7)} == {"zero_variance"}
    assert credit.counts["groups_zero_variance"] == 1
    assert credit.counts["unused_zero_variance"] == 7


def test_a_rollout_of_its_own_has_no_baseline() -> None:
    credit = assign(
        [rollout("a-0", 1.0), rollout("solo", 1.0, group=""), rollout("alone", 0.0, group="")], CreditConfig()
    )
    assert {(row.advantage, row.weight) for row in credit.batch.rows} == {(0.0, 0.0)}
    assert credit.unused == {"a-0": "incomplete_group", "solo": "no_group", "alone": "no_group"}
    assert credit.batch.denominator == 0


def test_other_groups_act_through_the_denominator_only() -> None:
    alone = assign(group("a", [1, 0]), CreditConfig())
    beside = assign([*group("a", [1, 0]), *group("b", [0, 1, 1])], CreditConfig())
    assert tuple(row for row in beside.batch.rows if row.group_id == "a") == alone.batch.rows
    assert (alone.batch.denominator, beside.batch.denominator) == (8, 20)


def test_a_retried_rollout_counts_once() -> None:
    first = rollout("a-0", None, ended_by=EndedBy.INFRA, rollout_id="r0")
    second = rollout("a-1", 0.0, rollout_id="r0", attempt=1)
    third = rollout("a-2", 1.0, rollout_id="r0", attempt=2)
    credit = assign([first, third, second, rollout("a-3", 0.0)], CreditConfig())
    assert credit.unused == {"a-0": "infra", "a-1": "superseded"}
    assert advantages(credit) == {"a-2": 0.5, "a-3": -0.5}


def test_a_rollout_without_trained_tokens_keeps_its_reward_in_the_baseline() -> None:
    credit = assign([*group("a", [1, 0]), rollout("a-2", 1.0, rows=(0,)), rollout("a-3", 0.0, rows=())], CreditConfig())
    assert credit.unused == {"a-2": "no_trained_tokens", "a-3": "no_trained_tokens"}
    assert advantages(credit)["a-0"] == 0.5
    assert credit.batch.denominator == 8


def test_endings_can_be_kept_from_the_loss_but_not_from_the_baseline() -> None:
    cut = rollout("a-2", 1.0, ended_by=EndedBy.CONTEXT_FULL)
    trained = assign([*group("a", [1, 0]), cut], CreditConfig())
    left = assign([*group("a", [1, 0]), cut], CreditConfig(untrained=(EndedBy.CONTEXT_FULL,)))
    assert advantages(left) == advantages(trained)
    assert left.unused == {"a-2": "context_full"}
    assert [row.weight for row in left.batch.rows] == [1.0, 1.0, 0.0]
    assert (trained.batch.denominator, left.batch.denominator) == (12, 8)


def test_aggregations_have_the_formulas_they_are_named_by() -> None:
    rollouts = [rollout("a-0", 1.0, rows=(2, 6)), rollout("a-1", 0.0, rows=(4,))]
    tokens = assign(rollouts, CreditConfig()).batch
    mean = assign(rollouts, CreditConfig(aggregation="rollout-mean")).batch
    total = assign(rollouts, CreditConfig(aggregation="rollout-sum", rollout_sum_constant=100)).batch
    assert (tokens.denominator, [row.weight for row in tokens.rows]) == (12, [1, 1, 1])
    assert (mean.denominator, [row.weight for row in mean.rows]) == (2, [1 / 8, 1 / 8, 1 / 4])
    assert (total.denominator, [row.weight for row in total.rows]) == (200, [1, 1, 1])


def test_a_group_that_mixes_tasks_is_refused() -> None:
    with pytest.raises(TrainerError, match="group a mixes tasks"):
        assign([rollout("a-0", 1.0), rollout("a-1", 0.0, task="another")], CreditConfig())


def test_a_session_offered_twice_is_refused() -> None:
    with pytest.raises(TrainerError, match="a-0 was offered 2 times"):
        assign([rollout("a-0", 1.0), rollout("a-0", 1.0)], CreditConfig())


def test_rounding_never_becomes_an_advantage() -> None:
    assert group_advantages([0.1 + 0.2, 0.3, 0.3], normalise_std=True) == [0.0, 0.0, 0.0]
    assert group_advantages([0.35] * 7, normalise_std=True) == [0.0] * 7


def test_normalised_advantages_are_bounded_by_the_size_of_the_group() -> None:
    values = group_advantages([0.35] * 7 + [0.95], normalise_std=True)
    assert values[-1] == pytest.approx(math.sqrt(7))
    tiny = group_advantages([0.0, 1e-6], normalise_std=True, std_floor=0.01)
    assert max(map(abs, tiny)) < 1e-4


def test_nobody_to_train_is_an_empty_batch() -> None:
    credit = assign([], CreditConfig())
    assert (credit.batch.rows, credit.batch.denominator, credit.trained) == ((), 0.0, ())
