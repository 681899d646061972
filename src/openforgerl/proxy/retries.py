"""Which request is the retry of an earlier one. Only a known retry is; any other equal request is a new sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar


class CallState(StrEnum):
    OPEN = "open"
    """Not committed yet."""
    COMMITTED = "committed"
    FAILED = "failed"
    """Its answer is not whole: a retry is sampled anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryMarks:
    """What a request says about being a retry."""

    idempotency_key: str = ""
    retry_count: int = 0

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> RetryMarks:
        count = headers.get("x-stainless-retry-count", "")
        return cls(
            idempotency_key=headers.get("idempotency-key", ""),
            retry_count=int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0,
        )


class Answered(Protocol):
    """An earlier call, as far as a retry is concerned."""

    marks: RetryMarks
    state: CallState
    lost: bool
    """Committed, but its terminal event could not be written: the client had gone."""
    retried: bool
    """Its retry was answered; a further equal request is a new one."""


A = TypeVar("A", bound=Answered)


@dataclass(slots=True)
class RetryBook(Generic[A]):
    """The calls of one session, by digest."""

    _calls: dict[str, list[A]] = field(default_factory=dict)

    def add(self, digest: str, call: A) -> None:
        kept = [earlier for earlier in self._calls.get(digest, ()) if not earlier.retried]
        self._calls[digest] = [*kept, call]

    def earlier(self, digest: str, marks: RetryMarks) -> A | None:
        """The call whose answer this request is to get, or None: sample."""
        calls = [call for call in self._calls.get(digest, ()) if not call.retried]
        if marks.idempotency_key:
            same = [call for call in calls if call.marks.idempotency_key == marks.idempotency_key]
            if same:
                return _resolve(same)
        if marks.retry_count > 0:
            return _resolve(calls)
        return _first(calls, CallState.COMMITTED, lost=True)


def _resolve(calls: Sequence[A]) -> A | None:
    """What a known retry most likely repeats: a lost answer, a failed call, one still running, a delivered answer."""
    failed = _first(calls, CallState.FAILED)
    lost = _first(calls, CallState.COMMITTED, lost=True)
    if lost is None and failed is not None:
        failed.retried = True
        return None
    return lost or _first(calls, CallState.OPEN) or _first(tuple(reversed(calls)), CallState.COMMITTED)


def _first(calls: Iterable[A], state: CallState, *, lost: bool = False) -> A | None:
    return next((call for call in calls if call.state is state and (call.lost or not lost)), None)
