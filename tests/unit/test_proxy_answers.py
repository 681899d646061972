"""An answer in the making: what an engine may not do, and what clients got of it."""

from __future__ import annotations

import math

import pytest

from openforgerl.errors import EngineAborted, EngineError
from openforgerl.proxy.answer import Answer
from openforgerl.proxy.feed import Batch, Broadcast
from openforgerl.records import (
    CallFailed,
    CallFinished,
    Delivered,
    EngineFinish,
    Finish,
    GenerateChunk,
    TextDelta,
    Usage,
    VersionRun,
)
from openforgerl.tokens.parsing import AnswerParser
from proxy_world import codec, odd_ids

END = CallFinished(finish=Finish.STOP, usage=Usage(prompt_tokens=1, sampled_tokens=2))


def answer(stop: tuple[str, ...] = ()) -> Answer:
    return Answer(AnswerParser(codec(), tools=(), stop=stop, mint=lambda: "call1"))


def chunk(
    text: str = "ab", version: int = 0, finish: EngineFinish | None = None, logprob: float = -0.5
) -> GenerateChunk:
    ids = odd_ids(text, ends_turn=False)
    return GenerateChunk(ids=ids, logprobs=(logprob,) * len(ids), policy_version=version, finish=finish)


def test_ids_log_probs_and_versions_are_kept_as_they_come() -> None:
    made = answer()
    for part in (chunk("ab", 1), chunk("c", 1), chunk("", 2), chunk("de", 3, EngineFinish.STOP)):
        made.take(part)
    assert tuple(made.ids) == odd_ids("abcde", ends_turn=False)
    assert made.versions == [VersionRun(policy_version=1, count=3), VersionRun(policy_version=3, count=2)]
    assert made.end().answer.text == "abcde"


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf, 0.1])
def test_a_log_prob_that_is_none_is_refused_with_its_ids(logprob: float) -> None:
    made = answer()
    made.take(chunk("ab"))
    with pytest.raises(EngineError, match="log-prob"):
        made.take(chunk("c", logprob=logprob))
    assert tuple(made.ids) == odd_ids("ab", ends_turn=False)


def test_an_answer_without_ids_is_an_error() -> None:
    made = answer()
    made.take(chunk("", finish=EngineFinish.STOP))
    with pytest.raises(EngineError, match="without ids"):
        made.end()


def test_an_answer_without_an_end_is_an_error() -> None:
    made = answer()
    made.take(chunk("ab"))
    with pytest.raises(EngineError, match="without a finish reason"):
        made.end()


def test_ids_after_the_end_are_an_error() -> None:
    made = answer()
    made.take(chunk("ab", finish=EngineFinish.STOP))
    with pytest.raises(EngineError, match="went on"):
        made.take(chunk("c"))


def test_an_abort_keeps_the_ids_that_came_with_it() -> None:
    made = answer()
    with pytest.raises(EngineAborted):
        made.take(chunk("ab", finish=EngineFinish.ABORT))
    assert tuple(made.ids) == odd_ids("ab", ends_turn=False)
    assert made.cut().answer.text == "ab"


def test_a_stop_string_ends_the_answer_and_keeps_the_sampled_ids() -> None:
    made = answer(stop=("b",))
    made.take(chunk("abc"))
    assert made.stopped
    assert made.end().answer.text == "a"
    assert tuple(made.ids) == odd_ids("abc", ends_turn=False)


def batches() -> list[Batch]:
    return [
        Batch(events=(TextDelta(text="a"),), shown=1),
        Batch(events=(TextDelta(text="b"),), shown=2),
        Batch(events=(END,), shown=2, last=True),
    ]


def broadcast() -> Broadcast:
    return Broadcast(on_end=lambda feed: None, on_left=lambda: None)


def test_delivery_is_the_best_that_any_client_got() -> None:
    sent = broadcast()
    one, two = sent.attach(), sent.attach()
    first, second, last = batches()
    for batch in (first, second, last):
        sent.push(batch)
    one.wrote(first)
    two.wrote(first)
    two.wrote(second)
    assert sent.delivered == Delivered(state="prefix", count=2)
    one.leave()
    two.wrote(last)
    assert sent.delivered == Delivered(state="full")


def test_a_write_whose_end_nobody_knows_is_unknown_unless_another_client_got_all() -> None:
    sent = broadcast()
    one = sent.attach()
    for batch in batches():
        sent.push(batch)
    one.uncertain = True
    one.leave()
    assert sent.delivered == Delivered(state="unknown")
    two = sent.attach(retry=True)
    for batch in batches():
        two.wrote(batch)
    assert sent.delivered == Delivered(state="full")


def test_a_failure_is_never_delivered_in_full() -> None:
    sent = broadcast()
    one = sent.attach()
    failed = CallFailed(message="later", code="engine_aborted", http_status=503)
    last = Batch(events=(failed,), last=True, error=EngineAborted("later"))
    for batch in (batches()[0], last):
        sent.push(batch)
        one.wrote(batch)
    assert sent.delivered == Delivered(state="prefix", count=1)


async def test_who_comes_late_gets_everything_in_fewer_batches() -> None:
    sent = broadcast()
    one = sent.attach()
    for batch in batches():
        sent.push(batch)
    one.leave()
    sent.compact()
    got = [batch async for batch in sent.attach().batches()]
    assert [event for batch in got for event in batch.events] == [TextDelta(text="ab"), END]
    assert len(got) == 1
