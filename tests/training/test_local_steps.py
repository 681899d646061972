"""Steps of the local trainer: they learn, they equal the reference, and they change nothing when refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policy import (
    VOCABULARY,
    alternating,
    batch_of,
    conversations,
    load,
    naive_logprobs,
    naive_model,
    naive_policy_loss,
    policy_gradient,
    relative_difference,
    row,
    with_engine_logprobs,
)
from torch.utils._python_dispatch import TorchDispatchMode

from openforgerl.errors import TrainerError
from openforgerl.records import Batch, MaskReason, TokenRow


def test_sft_learns_three_rows_by_heart(tiny: Path) -> None:
    trainer = load(tiny, sft_lr=1e-2)
    rows = [conversations(seed, groups=1, rollouts=1)[0] for seed in range(3)]
    first = trainer.sft_step(rows).metrics["loss"]
    for _ in range(60):
        last = trainer.sft_step(rows).metrics["loss"]
    assert first > 4.0
    assert last < 0.05


def test_sft_loss_is_the_mean_over_exactly_the_trained_tokens(tiny: Path) -> None:
    rows = conversations()
    model = naive_model(tiny)
    total = sum(
        -naive_logprobs(model, one, temperature=1.0)[place].item()
        for one in rows
        for place, mask in enumerate(one.loss_mask)
        if mask
    )
    update = load(tiny).sft_step(rows)
    tokens = sum(sum(one.loss_mask) for one in rows)
    assert update.metrics["tokens_trained"] == tokens
    assert update.metrics["loss"] == pytest.approx(total / tokens, rel=1e-6)


def test_a_policy_step_raises_what_was_good_and_lowers_what_was_bad(tiny: Path) -> None:
    trainer = load(tiny, lr=1e-3)
    rows = with_engine_logprobs([one for one in conversations() if one.branch == 0], trainer)
    signs = {one.session_id: 1.0 if index % 2 else -1.0 for index, one in enumerate(rows)}
    before = trainer.logprobs(rows)
    trainer.policy_step(batch_of(rows, advantage=lambda one: signs[one.session_id]))
    for one, old, new in zip(rows, before, trainer.logprobs(rows), strict=True):
        change = sum(b - a for a, b, mask in zip(old, new, one.loss_mask, strict=True) if mask)
        assert change * signs[one.session_id] > 0


@pytest.mark.parametrize("settings", [{}, {"pack": False}, {"token_budget": 60, "logit_chunk": 7}])
def test_the_gradient_equals_a_loop_over_rows_and_tokens(tiny: Path, settings: dict[str, object]) -> None:
    batch = batch_of(with_engine_logprobs(conversations(), load(tiny), noise=1.5), advantage=alternating)
    model = naive_model(tiny)
    loss = naive_policy_loss(model, batch)
    loss.backward()
    taken = policy_gradient(tiny, batch, **settings)
    assert relative_difference(taken, [p.grad for p in model.parameters()]) <= 1e-5


def test_a_shared_sampled_token_counts_for_each_row_that_trains_it(tiny: Path) -> None:
    ids = [5, 6, 7, 8, 9]
    left, right = row(ids, [2, 3, 4], session="g0-r0"), row([*ids, 11], [3], session="g0-r1")
    advantages = {"g0-r0": 1.0, "g0-r1": -3.0}
    rows = with_engine_logprobs([left, right], load(tiny))
    batch = batch_of(rows, advantage=lambda one: advantages[one.session_id])
    model = naive_model(tiny)
    naive_policy_loss(model, batch).backward()
    taken = policy_gradient(tiny, batch)
    assert relative_difference(taken, [p.grad for p in model.parameters()]) <= 1e-5


def test_a_rollout_cut_into_more_rows_has_the_same_gradient(tiny: Path) -> None:
    whole = [one for one in conversations() if one.branch == 0]
    cut = [part for one in whole for part in split_at_last_turn(one)]
    assert len(cut) == 2 * len(whole)
    first, second = (batch_of(with_engine_logprobs(rows, load(tiny)), advantage=alternating) for rows in (whole, cut))
    assert first.denominator == second.denominator
    difference = relative_difference(policy_gradient(tiny, first), policy_gradient(tiny, second))
    assert difference <= 1e-5


def split_at_last_turn(one: TokenRow) -> tuple[TokenRow, TokenRow]:
    """The same trained tokens as two rows: the last turn is trained in a row of its own, the others in theirs."""
    trained = [place for place, mask in enumerate(one.loss_mask) if mask]
    cut = next(place for place in reversed(trained) if place - 1 not in trained)
    earlier = [place for place in trained if place < cut]
    about = {"session": one.session_id, "temperature": one.temperature}
    return (
        row(one.token_ids[: earlier[-1] + 1], earlier, **about),
        row(one.token_ids, [place for place in trained if place >= cut], branch=1, **about),
    )


def test_other_tasks_act_on_the_gradient_through_the_denominator_only(tiny: Path) -> None:
    rows = with_engine_logprobs(conversations(), load(tiny))
    batches = [
        batch_of([one for one in rows if one.session_id.startswith(name)], advantage=alternating)
        for name in ("g0", "g1", "g")
    ]
    first, second, both = (policy_gradient(tiny, batch) for batch in batches)
    shares = [batch.denominator / batches[2].denominator for batch in batches[:2]]
    weighted = [shares[0] * left + shares[1] * right for left, right in zip(first, second, strict=True)]
    assert relative_difference(both, weighted) <= 1e-5


def test_no_tensor_of_vocabulary_size_exceeds_a_chunk(tiny: Path) -> None:
    """Not for the prompt, and not for all trained places at once."""
    trainer = load(tiny, logit_chunk=40)  # more than the width of the model: its weights have that many rows
    batch = batch_of(with_engine_logprobs(conversations(), trainer), advantage=alternating)
    assert batch.denominator > 3 * 40
    with LargestLogits() as largest:
        trainer.policy_step(batch)
    assert largest.rows == 40


class LargestLogits(TorchDispatchMode):
    """The most rows of vocabulary width that any operation gave."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dim() > 1 and result.shape[-1] == VOCABULARY:
            self.rows = max(self.rows, result.numel() // VOCABULARY)
        return result


def test_packing_forwards_shared_tokens_once(tiny: Path) -> None:
    rows = with_engine_logprobs(conversations(), load(tiny))
    packed, apart = load(tiny), load(tiny, pack=False)
    batch = batch_of(rows, advantage=alternating)
    with_trie = packed.policy_step(batch)[0].metrics
    without = apart.policy_step(batch)[0].metrics
    assert with_trie["tokens_forwarded"] < 0.7 * without["tokens_forwarded"]
    assert without["tokens_forwarded"] == without["tokens_in_rows"] == with_trie["tokens_in_rows"]
    assert with_trie["loss"] == pytest.approx(without["loss"], abs=1e-6)


def test_shuffled_rows_give_the_same_weights_to_the_bit(tiny: Path) -> None:
    rows = with_engine_logprobs(conversations(), load(tiny), noise=0.1)
    straight, shuffled = load(tiny), load(tiny)
    straight.policy_step(batch_of(rows, advantage=alternating))
    shuffled.policy_step(batch_of([*rows[5:], *reversed(rows[:5])], advantage=alternating))
    assert all(torch.equal(straight.state()[name], value) for name, value in shuffled.state().items())


def test_placeholders_of_masked_tokens_enter_nothing(tiny: Path) -> None:
    rows = with_engine_logprobs(conversations(), load(tiny), noise=0.1)
    poisoned = [
        replace(
            one,
            logprobs=tuple(
                math.nan if version == -1 else value
                for value, version in zip(one.logprobs, one.policy_versions, strict=True)
            ),
        )
        for one in rows
    ]
    clean, other = load(tiny), load(tiny)
    first = clean.policy_step(batch_of(rows, advantage=alternating))
    assert first == other.policy_step(batch_of(poisoned, advantage=alternating))
    assert all(torch.equal(clean.state()[name], value) for name, value in other.state().items())


def test_receipts_cover_sampled_tokens_masked_or_not_but_no_changed_distribution(tiny: Path) -> None:
    trainer = load(tiny)
    ids = list(range(10, 22))
    masked = {4: MaskReason.SIDE_CALL, 5: MaskReason.CLIENT_ABORTED, 6: MaskReason.CHANGED_DISTRIBUTION}
    (exact,) = with_engine_logprobs([row(ids, [8, 9], session="g0-r0", masked=masked)], trainer)
    off = list(exact.logprobs)
    off[4] += 0.25
    off[6] += 5.0
    shifted = replace(exact, logprobs=tuple(off))
    (receipt,) = trainer.receipts([shifted])
    assert (receipt.tokens, receipt.policy_version) == (4, 0)
    assert receipt.max_gap == pytest.approx(0.25, abs=1e-5)
    assert receipt.mean_gap == pytest.approx(0.25 / 4, abs=1e-5)
    _, (from_step,) = trainer.policy_step(batch_of([shifted], advantage=lambda one: 1.0))
    assert from_step.max_gap == pytest.approx(receipt.max_gap, abs=1e-6)
    assert (from_step.tokens, from_step.policy_version) == (4, 0)


def test_a_greedy_row_has_a_receipt_without_tokens_and_a_lost_logprob_an_infinite_gap(tiny: Path) -> None:
    ids = list(range(10, 20))
    greedy = row(
        ids, [], session="g0-r0", temperature=0.0, masked=dict.fromkeys([3, 4], MaskReason.CHANGED_DISTRIBUTION)
    )
    lost = row(ids, [3], session="g0-r1", logprobs=[math.nan] * 10)
    of_greedy, of_lost = load(tiny).receipts([greedy, lost])
    assert (of_greedy.tokens, of_greedy.max_gap) == (0, 0.0)
    assert (of_lost.tokens, of_lost.max_gap) == (1, math.inf)


def test_logprobs_are_those_of_the_rows_temperature(tiny: Path) -> None:
    model, trainer = naive_model(tiny), load(tiny)
    rows = conversations()
    assert {one.temperature for one in rows} == {1.0, 0.7}
    for one, values in zip(rows, trainer.logprobs(rows), strict=True):
        torch.testing.assert_close(torch.tensor(values), naive_logprobs(model, one).detach(), atol=1e-5, rtol=1e-5)


def test_a_gap_above_the_limit_is_refused_and_nothing_is_applied(tiny: Path) -> None:
    trainer = load(tiny, max_gap=1e-4)
    rows = with_engine_logprobs(conversations(), trainer)
    trainer.policy_step(batch_of(rows, advantage=alternating))
    before = {name: value.clone() for name, value in trainer.state().items()}
    with pytest.raises(TrainerError, match=r"max_gap = 0\.0001"):
        trainer.policy_step(batch_of(with_engine_logprobs(rows, trainer, noise=0.01), advantage=alternating))
    assert all(torch.equal(before[name], value) for name, value in trainer.state().items())
    assert trainer.policy_version == 1


def test_a_step_that_is_not_finite_is_refused_and_nothing_is_applied(tiny: Path) -> None:
    trainer = load(tiny)
    rows = conversations()
    next(iter(trainer.state().values())).view(-1)[5 * 32] = math.inf
    with pytest.raises(TrainerError, match="nothing applied"):
        trainer.sft_step([replace(one, token_ids=(5, *one.token_ids[1:])) for one in rows])
    assert trainer.policy_version == 0
    assert torch.isinf(next(iter(trainer.state().values()))).sum() == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprob_kind": "scripted"}, "logprob_kind 'scripted'"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"logprobs": (math.nan,) * 5}, "token 2 has mask 1 but no log-prob"),
        ({"policy_versions": (-1,) * 5}, "token 2 has mask 1 but no log-prob"),
        ({"loss_mask": (1, 0, 0, 0, 0), "mask_reasons": (None, *[MaskReason.CONTEXT] * 4)}, "token 0 has mask 1"),
    ],
)
def test_rows_that_are_no_policys_are_refused_by_name(tiny: Path, change: dict[str, object], message: str) -> None:
    bad = replace(row([5, 6, 7, 8, 9], [2, 3], session="g0-r0"), **change)  # type: ignore[arg-type]
    with pytest.raises(TrainerError, match=rf"row g0-r0/0.*{message}"):
        load(tiny).policy_step(batch_of([bad], advantage=lambda one: 1.0))


def test_a_batch_without_anything_to_train_is_an_error(tiny: Path) -> None:
    trainer = load(tiny)
    batch = batch_of(conversations(), advantage=alternating)
    idle = Batch(rows=tuple(replace(one, weight=0.0) for one in batch.rows), denominator=0.0)
    with pytest.raises(TrainerError, match="nothing to train"):
        trainer.policy_step(idle)
    with pytest.raises(TrainerError, match="nothing to train"):
        trainer.sft_step([row([5, 6, 7], [])])


def test_rows_of_weight_0_change_nothing_but_the_count(tiny: Path) -> None:
    rows = with_engine_logprobs(conversations(), load(tiny))
    batch = batch_of(rows, advantage=alternating)
    idle = tuple(
        replace(one, weight=0.0, advantage=9.0) for one in batch_of(conversations(7), advantage=alternating).rows
    )
    alone, beside = load(tiny), load(tiny)
    alone.policy_step(batch)
    update, receipts = beside.policy_step(replace(batch, rows=(*idle, *batch.rows)))
    assert update.metrics["rows_skipped"] == len(idle)
    assert len(receipts) == len(rows)
    assert all(torch.equal(alone.state()[name], value) for name, value in beside.state().items())
