"""What differs between servers that take ids and give ids: a wire, without I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import orjson

from openforgerl.engines.sse import DONE
from openforgerl.errors import EngineAborted, EngineError
from openforgerl.records import EngineFinish, GenerateRequest

LOWEST_LOGPROB = -9999.0
"""What servers put where they have no log-prob."""

_LARGEST_ID = 2**31 - 1

Json = Mapping[str, object]
LogprobKind = Literal["sampled", "raw"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request to a server: a call, or the rest of one that an update interrupted."""

    request: GenerateRequest
    before: tuple[int, ...]
    """Ids of the answer that earlier requests gave."""
    limit: int
    """Most ids of the whole answer."""
    model: str
    policy_version: int

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        return self.request.prompt_ids + self.before

    @cached_property
    def prompt_json(self) -> bytes:
        """Encoded once: a long prompt takes a millisecond."""
        return orjson.dumps(self.prompt)

    @property
    def room(self) -> int:
        return self.limit - len(self.before)

    @property
    def seed(self) -> int | None:
        """The rest of an answer must not draw what its beginning drew."""
        seed = self.request.sampling.seed
        return None if seed is None else seed + len(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one event of a stream holds."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: EngineFinish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request of a weight update: POST `body` to `path`, and the answer must be `good`."""

    path: str
    body: Json
    good: str = ""
    """A field of the answer that must be true; "" where the status says enough."""


class Reader(Protocol):
    """Reads one stream."""

    def read(self, data: bytes) -> Piece:
        """Of one event. Raises EngineError where it lies or is no event, EngineAborted where the server gave up."""
        ...


class Wire(Protocol):
    """One kind of server."""

    path: str
    """Where calls are posted."""
    health_path: str

    def body(self, asked: Asked) -> bytes:
        """Every setting of the sampling by name: what is left out, a server fills in from the model's folder."""
        ...

    def reader(self, asked: Asked) -> Reader: ...

    def update(self, folder: Path, policy_version: int) -> Sequence[Question]:
        """What makes a folder the weights, and drops every cache of old ones."""
        ...

    def probe(self, model: str, temperature: float) -> Json:
        """One id, with the log-probs of several candidates."""
        ...

    def probed(self, answer: bytes) -> Mapping[object, float]:
        """The log-probs by candidate; {} where the answer has none."""
        ...


@dataclass(slots=True)
class Ledger:
    """The ids of one stream as they come, checked: what all wires have in common."""

    asked: Asked
    count: int = 0
    last: int | None = None
    finished: bool = False

    def take(self, ids: Sequence[object], logprobs: Sequence[object]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Raises EngineError."""
        if self.finished and ids:
            raise self._lie("it went on behind its end")
        if len(ids) != len(logprobs):
            raise self._lie(f"{len(ids)} ids came with {len(logprobs)} log-probs")
        sampled = tuple([self._id(token) for token in ids])
        stops = self.asked.request.stop_ids
        if (self.last in stops and sampled) or any([token in stops for token in sampled[:-1]]):
            raise self._lie("it went on behind an end-of-turn id")
        self.count += len(sampled)
        if self.count > self.asked.room:
            raise self._lie(f"{self.count} ids came, {self.asked.room} were asked for")
        self.last = sampled[-1] if sampled else self.last
        return sampled, tuple([self._logprob(value) for value in logprobs])

    def finish(self, said: object, matched: object = None) -> EngineFinish | None:
        """The true reason, whatever the server calls it: ids are the truth. `matched`: what it says stopped it."""
        if said is None:
            return None
        if self.finished:
            raise self._lie("it ended twice")
        self.finished = True
        if said == "abort":
            return EngineFinish.ABORT
        if isinstance(matched, int) and matched != self.last:
            raise self._lie(f"it stopped at id {matched}, which it did not give")
        if self.last in self.asked.request.stop_ids or said == "stop":
            return EngineFinish.STOP
        if self.count == self.asked.room:
            return EngineFinish.LENGTH
        raise self._lie(f"it ended with {said!r} after {self.count} of {self.asked.room} ids")

    def check_echo(self, echoed: object) -> None:
        """Raises EngineError where the server saw another prompt than it was sent."""
        if echoed != list(self.asked.prompt):
            count = len(echoed) if isinstance(echoed, list) else 0
            error = self._lie(f"it saw another prompt ({count} ids) than it was sent ({len(self.asked.prompt)} ids)")
            error.code = "prompt_not_echoed"
            raise error

    def _id(self, token: object) -> int:
        if type(token) is not int or not 0 <= token <= _LARGEST_ID:
            raise self._lie(f"{token!r} is no id")
        return token

    def _logprob(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not LOWEST_LOGPROB < value < math.inf:
            raise self._lie(f"an id came with the log-prob {value!r}")
        return float(value)

    def _lie(self, what: str) -> EngineError:
        return EngineError(f"request {self.asked.request.request_id}: the engine cannot be believed: {what}")


def event(data: bytes) -> Json:
    """One event's JSON object. Raises EngineError."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the engine sent what is no JSON: {data[:80]!r}") from error
    if not isinstance(body, dict):
        raise EngineError(f"the engine sent what is no object: {data[:80]!r}")
    if body.get("error"):
        raise EngineAborted(f"the engine gave the call up: {str(body['error'])[:300]}; try again")
    return body


def is_done(data: bytes) -> bool:
    return not data or data == DONE


def field_of(body: object, name: str) -> object:
    """None where there is none."""
    return body.get(name) if isinstance(body, dict) else None


def list_of(body: object, name: str) -> list[object]:
    """Raises EngineError where the field is there and no list; [] where it is missing or null."""
    value = field_of(body, name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise EngineError(f"the engine sent {name} = {str(value)[:80]}, which is no list")
    return value


def logprob_kind(plain: Mapping[object, float], halved: Mapping[object, float]) -> LogprobKind:
    """Of two answers to one prompt, at temperature 1 and 2: "raw" log-probs do not follow the temperature.

    Where nothing can be told apart they are taken for raw, the kind that allows less.
    """
    both = sorted((plain[key], halved[key]) for key in plain.keys() & halved.keys())
    if len(both) < 2:
        return "raw"
    gap, gap_at_2 = (high - low for low, high in zip(both[0], both[-1], strict=True))
    return "sampled" if gap > 0.05 and abs(gap_at_2 - gap / 2) < abs(gap_at_2 - gap) else "raw"
