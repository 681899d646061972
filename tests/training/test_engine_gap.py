"""The local engine and the local trainer agree on every sampled token, before and after an update of the weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_policy import batch_of, load, naive_logprobs, naive_model, row
from tiny_policy import conversations as random_rows

from openforgerl.engines.local import LocalEngine, LocalEngineConfig
from openforgerl.errors import TrainerError
from openforgerl.records import GenerateRequest, Sampling, TokenRow

GATE = 1e-4
SYSTEM = tuple(range(3, 40))


Sampled = tuple[list[int], list[float]]


async def answer(engine: LocalEngine, name: str, prompt: tuple[int, ...], temperature: float) -> Sampled:
    sampling = Sampling(temperature=temperature, max_tokens=12, seed=sum(map(ord, name)))
    request = GenerateRequest(request_id=name, session_id=name, prompt_ids=prompt, sampling=sampling, stop_ids=(2,))
    ids: list[int] = []
    logprobs: list[float] = []
    async for chunk in engine.generate(request):
        ids += chunk.ids
        logprobs += chunk.logprobs
    return ids, logprobs


async def conversation(engine: LocalEngine, name: str, temperature: float) -> TokenRow:
    """Three turns behind a prompt that all conversations share."""
    ids, logprobs, trained = list(SYSTEM), [0.0] * len(SYSTEM), []
    for turn in range(3):
        sampled, values = await answer(engine, f"{name}-{turn}", tuple(ids), temperature)
        trained += range(len(ids), len(ids) + len(sampled))
        ids += [*sampled, 50, 51 + turn]
        logprobs += [*values, 0.0, 0.0]
    return row(ids, trained, session=name, logprobs=logprobs, temperature=temperature)


async def conversations(engine: LocalEngine, run: str) -> list[TokenRow]:
    heats = (1.0, 0.7, 1.0, 1.3)
    return list(await asyncio.gather(*(conversation(engine, f"{run}-{i}", heat) for i, heat in enumerate(heats))))


async def test_every_row_is_within_the_gate_across_an_update(tiny: Path) -> None:
    engine, trainer = LocalEngine.load(tiny, LocalEngineConfig()), load(tiny, lr=1e-2, max_gap=GATE)
    try:
        rows = await conversations(engine, "first")
        receipts = trainer.receipts(rows)
        assert [receipt.tokens for receipt in receipts] == [sum(one.loss_mask) for one in rows]
        assert max(receipt.max_gap for receipt in receipts) <= GATE
        update, _ = trainer.policy_step(batch_of(rows, advantage=lambda one: 1.0))
        with pytest.raises(TrainerError, match="policy version 1"):
            trainer.policy_step(batch_of(rows, advantage=lambda one: 1.0))
        await engine.set_weights(trainer.state(), update.policy_version)
        later = trainer.receipts(await conversations(engine, "second"))
        assert max(receipt.max_gap for receipt in later) <= GATE
    finally:
        await engine.aclose()


def exact(model: Path, rows: list[TokenRow]) -> list[TokenRow]:
    """The rows as an engine without rounding would have recorded them."""
    sharp = naive_model(model).double()
    return [
        replace(one, logprobs=tuple(v if m else 0.0 for v, m in zip(values, one.loss_mask, strict=True)))
        for one in rows
        for values in [naive_logprobs(sharp, one).tolist()]
    ]


def test_the_trainers_own_rounding_does_not_count_as_a_gap(tiny: Path) -> None:
    rows = exact(tiny, [one for one in random_rows() if one.branch == 0])
    rounding = max(receipt.max_gap for receipt in load(tiny).receipts(rows))
    trainer = load(tiny, max_gap=rounding / 4)
    assert max(receipt.max_gap for receipt in trainer.receipts(rows)) < rounding / 4
    update, receipts = trainer.policy_step(batch_of(rows, advantage=lambda one: 1.0))
    assert update.metrics["rows_measured_again"] > 0
    assert max(receipt.max_gap for receipt in receipts) < rounding / 4


def test_a_gap_of_the_engine_stays_one_when_it_is_measured_again(tiny: Path) -> None:
    rows = exact(tiny, [one for one in random_rows() if one.branch == 0])
    off = replace(rows[0], logprobs=tuple(v - 3e-4 if v else v for v in rows[0].logprobs))
    trainer = load(tiny, max_gap=GATE)
    assert trainer.receipts([off])[0].max_gap == pytest.approx(3e-4, rel=0.02)
    with pytest.raises(TrainerError, match=r"--set trainer\.max_gap"):
        trainer.policy_step(batch_of([off, *rows[1:]], advantage=lambda one: 1.0))
