"""Which request is a known retry, and which earlier call it repeats."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from openforgerl.proxy.remembering import digest_of
from openforgerl.proxy.retries import CallState, RetryBook, RetryMarks
from openforgerl.records import Message, ModelRequest, Role, Sampling, ToolSpec

OPEN, COMMITTED, FAILED = CallState.OPEN, CallState.COMMITTED, CallState.FAILED
UNMARKED, SECOND_TRY = RetryMarks(), RetryMarks(retry_count=1)


@dataclass
class Earlier:
    state: CallState
    lost: bool = False
    retried: bool = False
    marks: RetryMarks = UNMARKED


def book(*calls: Earlier) -> RetryBook[Earlier]:
    made: RetryBook[Earlier] = RetryBook()
    for call in calls:
        made.add("d", call)
    return made


def test_an_unmarked_request_gets_a_lost_answer_only() -> None:
    lost = Earlier(COMMITTED, lost=True)
    assert book(Earlier(OPEN), Earlier(FAILED), Earlier(COMMITTED), lost).earlier("d", UNMARKED) is lost
    assert book(Earlier(OPEN), Earlier(FAILED), Earlier(COMMITTED)).earlier("d", UNMARKED) is None


def test_another_digest_is_another_request() -> None:
    assert book(Earlier(COMMITTED, lost=True)).earlier("other", SECOND_TRY) is None


def test_a_counted_retry_prefers_what_was_lost_then_what_failed_then_what_runs() -> None:
    lost, running, whole = Earlier(COMMITTED, lost=True), Earlier(OPEN), Earlier(COMMITTED)
    assert book(whole, Earlier(FAILED), running, lost).earlier("d", SECOND_TRY) is lost
    assert book(whole, Earlier(FAILED), running).earlier("d", SECOND_TRY) is None
    assert book(whole, running).earlier("d", SECOND_TRY) is running
    assert book(whole).earlier("d", SECOND_TRY) is whole


def test_the_last_of_several_delivered_answers_is_the_one_that_is_retried() -> None:
    first, last = Earlier(COMMITTED), Earlier(COMMITTED)
    assert book(first, last).earlier("d", SECOND_TRY) is last


def test_a_failed_call_is_retried_once() -> None:
    failed, whole = Earlier(FAILED), Earlier(COMMITTED)
    made = book(whole, failed)
    assert made.earlier("d", SECOND_TRY) is None
    assert made.earlier("d", SECOND_TRY) is whole, "the failed call had its retry"


def test_a_replayed_answer_is_not_replayed_again_and_is_forgotten() -> None:
    replayed = Earlier(COMMITTED, lost=True, retried=True)
    made = book(replayed)
    assert made.earlier("d", SECOND_TRY) is None
    made.add("d", Earlier(OPEN))
    replayed.retried = False
    assert made.earlier("d", UNMARKED) is None


def test_an_idempotency_key_finds_its_own_call() -> None:
    mine = Earlier(COMMITTED, marks=RetryMarks(idempotency_key="a"))
    made = book(mine, Earlier(COMMITTED, marks=RetryMarks(idempotency_key="b")))
    assert made.earlier("d", RetryMarks(idempotency_key="a")) is mine
    assert made.earlier("d", RetryMarks(idempotency_key="c")) is None


@pytest.mark.parametrize(("sent", "read"), [("2", 2), ("", 0), ("-1", 0), ("x", 0), ("²", 0), ("9" * 50, 0)])
def test_retry_counts_are_read_with_care(sent: str, read: int) -> None:
    assert RetryMarks.of({"x-stainless-retry-count": sent}).retry_count == read


def test_a_digest_is_of_the_meaning() -> None:
    request = ModelRequest(messages=(Message(role=Role.USER, text="hi"),))
    assert digest_of(request) == digest_of(ModelRequest(messages=request.messages, ignored=("user",)))
    others = [
        ModelRequest(messages=(Message(role=Role.USER, text="ho"),)),
        ModelRequest(messages=request.messages, tools=(ToolSpec(definition="{}", name="f"),)),
        ModelRequest(messages=request.messages, sampling=Sampling(temperature=1.0)),
        ModelRequest(messages=request.messages, tool_choice="none"),
        ModelRequest(messages=request.messages, model="m"),
    ]
    assert len({digest_of(each) for each in (request, *others)}) == 6
