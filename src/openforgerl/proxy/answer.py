"""The answer of one call while it is sampled: ids, log-probs and versions as they come, parsed as they come."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from openforgerl.errors import EngineAborted, EngineError
from openforgerl.proxy.said import answer_said
from openforgerl.records import CallEvent, EngineFinish, GenerateChunk, VersionRun
from openforgerl.tokens.parsing import AnswerParser, ParsedAnswer

_ROUNDING = 1e-6
"""A log-prob may exceed 0 by this much."""


@dataclass(slots=True)
class Answer:
    """Only ids that came with a sound log-prob are taken; or events, of an engine that gives no ids."""

    parser: AnswerParser
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionRun] = field(default_factory=list)
    finish: EngineFinish | None = None
    said: list[CallEvent] = field(default_factory=list)

    def take(self, chunk: GenerateChunk) -> list[CallEvent]:
        """Raises EngineError, EngineAborted."""
        if self.finish is not None:
            raise EngineError("the engine went on after the end of its answer")
        if any(not math.isfinite(value) or value > _ROUNDING for value in chunk.logprobs):
            raise EngineError("the engine gave a log-prob that is not a finite number <= 0")
        if chunk.said:
            if chunk.ids or self.ids:
                raise EngineError("the engine gave an answer partly in ids, partly in text")
            self.said += chunk.said
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs
        self._add_version(chunk.policy_version, len(chunk.ids))
        self.finish = chunk.finish
        events = [*chunk.said, *self.parser.feed(chunk.ids)]
        if chunk.finish is EngineFinish.ABORT:
            raise EngineAborted("the engine dropped the call; try again")
        return events

    @property
    def stopped(self) -> bool:
        """A stop string was matched: nothing more is to be sampled."""
        return self.parser.stop_string is not None

    def end(self) -> ParsedAnswer:
        """Of a whole answer. Raises EngineError where the engine left it without ids or without an end."""
        if self.said and self.finish is not None:
            return answer_said(self.said, self.finish)
        if not self.ids:
            raise EngineError("the engine gave an answer without ids")
        if self.finish is None and not self.stopped:
            raise EngineError("the engine ended without a finish reason")
        return self.parser.finish(None if self.stopped else self.finish)

    def cut(self) -> ParsedAnswer:
        """Of an answer that was given up."""
        return answer_said(self.said, None) if self.said else self.parser.finish(None)

    def _add_version(self, policy_version: int, count: int) -> None:
        if self.versions and self.versions[-1].policy_version == policy_version:
            count += self.versions.pop().count
        if count:
            self.versions.append(VersionRun(policy_version=policy_version, count=count))
