"""Ids are drawn from the distribution whose log-probs are reported."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from torch import Tensor

from openforgerl.engines.local_sampling import RowSampling, row_sampling, sample
from openforgerl.errors import EngineError
from openforgerl.records import GenerateRequest, Sampling


def rows(count: int = 1, **asked: float | int | None) -> list[RowSampling]:
    return [row_sampling(request(Sampling(**{"seed": at, **asked}))) for at in range(count)]  # type: ignore[arg-type]


def request(sampling: Sampling) -> GenerateRequest:
    return GenerateRequest(request_id="r", session_id="s", prompt_ids=(1,), sampling=sampling, stop_ids=())


def draw_many(logits: Tensor, count: int = 4000, **asked: float | int) -> tuple[Counter[int], dict[int, float]]:
    """How often each id was drawn, and its log-prob."""
    ids, logprobs = sample(logits.repeat(count, 1), rows(count, **asked))
    return Counter(ids), dict(zip(ids, logprobs, strict=True))


LOGITS = torch.tensor([[1.0, 3.0, 2.0, 0.0, -1.0, 2.5]])


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_ids_come_as_often_as_the_tempered_softmax_says(temperature: float) -> None:
    expected = torch.softmax(LOGITS[0].double() / temperature, dim=-1).tolist()
    counts, logprobs = draw_many(LOGITS, temperature=temperature)
    for token, probability in enumerate(expected):
        spread = 5 * math.sqrt(4000 * probability)
        assert abs(counts[token] - 4000 * probability) < spread + 1
        if counts[token]:
            assert logprobs[token] == pytest.approx(math.log(probability), abs=1e-5)


def test_unset_sampling_is_temperature_one_without_truncation() -> None:
    asked = row_sampling(request(Sampling()))
    assert (asked.temperature, asked.top_k, asked.top_p, asked.min_p) == (1.0, 0, 1.0, 0.0)


def test_temperature_zero_takes_the_likeliest_id_with_its_untempered_logprob() -> None:
    counts, logprobs = draw_many(LOGITS, count=50, temperature=0.0, top_p=0.5)
    assert counts == {1: 50}
    assert logprobs[1] == pytest.approx(torch.log_softmax(LOGITS[0], -1)[1].item(), abs=1e-6)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"top_k": 2}, {1, 5}),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": -1}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.5}, {1, 5}),
        ({"top_p": 0.0}, {1}),
        ({"min_p": 0.3}, {1, 2, 5}),
        ({"top_k": 3, "top_p": 0.99, "min_p": 0.5}, {1, 5}),
    ],
)
def test_truncation_keeps_the_right_ids_and_logprobs_are_over_those(asked: dict[str, float], kept: set[int]) -> None:
    counts, logprobs = draw_many(LOGITS, count=3000, **asked)
    assert set(counts) == kept
    expected = torch.log_softmax(LOGITS[0, sorted(kept)], dim=-1).tolist()
    assert [logprobs[token] for token in sorted(kept)] == pytest.approx(expected, abs=1e-5)


def test_a_seed_gives_the_same_ids_whoever_is_in_the_batch() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    alone = [sample(logits[at : at + 1], [row_sampling(request(Sampling(seed=at)))])[0][0] for at in range(3)]
    assert sample(logits, rows(3))[0] == alone
    assert sample(logits.flip(0), list(reversed(rows(3))))[0] == alone[::-1]


def test_mixed_rows_each_keep_their_own_rule() -> None:
    mixed = [*rows(1, temperature=0.0), *rows(1, top_k=1), *rows(1, temperature=2.0)]
    ids, logprobs = sample(LOGITS.repeat(3, 1), mixed)
    assert ids[:2] == [1, 1]
    assert logprobs[0] == pytest.approx(torch.log_softmax(LOGITS[0], -1)[1].item(), abs=1e-6)
    assert logprobs[1] == 0.0
    assert logprobs[2] == pytest.approx(torch.log_softmax(LOGITS[0] / 2, -1)[ids[2]].item(), abs=1e-6)


class Always(random.Random):
    """The same number every time."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(("number", "token"), [(0.0, 10), (math.nextafter(1.0, 0.0), 19)])
def test_an_id_without_probability_is_never_drawn(number: float, token: int) -> None:
    """At both ends: where nothing is summed up yet, and where rounding would step over the last id."""
    logits = torch.full((1, 1000), -math.inf)
    logits[0, 10:20] = 0.1
    row = RowSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, rng=Always(number))
    assert sample(logits, [row]) == ([token], [pytest.approx(math.log(0.1), abs=1e-6)])


def test_rare_ids_of_a_large_vocabulary_are_drawn_as_often_as_they_should() -> None:
    logits = torch.zeros(1, 50_000)
    logits[0, 0] = math.log(50_000)
    ids, _ = sample(logits.expand(200, -1), rows(200))
    assert 70 < sum(token == 0 for token in ids) < 130
    assert len({token for token in ids if token}) > 60


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_give_the_logprob_nan_to_that_row_only(value: float) -> None:
    logits = LOGITS.repeat(2, 1)
    logits[0, 2] = value
    logprobs = sample(logits, rows(2))[1]
    assert math.isnan(logprobs[0])
    assert math.isfinite(logprobs[1])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Sampling(temperature=-1.0), "temperature -1.0"),
        (Sampling(temperature=math.nan), "temperature nan"),
        (Sampling(top_p=1.5), "top_p 1.5"),
        (Sampling(min_p=-0.1), "min_p -0.1"),
        (Sampling(top_k=-2), "top_k -2"),
        (Sampling(presence_penalty=0.5), "presence_penalty 0.5"),
        (Sampling(frequency_penalty=0.5), "frequency_penalty 0.5"),
        (Sampling(repetition_penalty=1.1), "repetition_penalty 1.1"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(asked: Sampling, message: str) -> None:
    with pytest.raises(EngineError, match=message) as refused:
        row_sampling(request(asked))
    assert (refused.value.retryable, refused.value.http_status) == (False, 400)


def test_neutral_penalties_are_nothing() -> None:
    row_sampling(request(Sampling(presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)))
