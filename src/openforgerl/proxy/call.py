"""One model call: intent, assembly, sampling, commit, delivery. Nobody gets its last event before it is durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum

from openforgerl.engines.base import Engine
from openforgerl.errors import AssemblyError, EngineAborted, EngineError, EngineTimeout, OpenForgeError, StoreError
from openforgerl.proxy.access import new_tool_call_id
from openforgerl.proxy.answer import Answer
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.feed import Batch, Broadcast, Feed
from openforgerl.proxy.recording import Outcome, Planned, Provenance, context_full, recorded, used_sampling
from openforgerl.proxy.retries import CallState, RetryMarks
from openforgerl.proxy.session import LiveSession, session_over
from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallFinished,
    CallStarted,
    Completion,
    Delivered,
    Finish,
    GenerateRequest,
    HarnessCall,
    ModelRequest,
    RecordedCall,
    Role,
    SpanKind,
    Usage,
)
from openforgerl.store.sqlite import Store
from openforgerl.tokens.parsing import AnswerParser
from openforgerl.tokens.template import Template

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What answers and records a call."""

    engine: Engine
    store: Store
    template: Template
    config: ProxyConfig
    clock: Callable[[], float]
    """Unix time, seconds."""
    spawn: Callable[[LiveSession, Coroutine[object, object, None]], None]
    """Run something of a session that outlives a client."""

    @property
    def provenance(self) -> Provenance:
        return Provenance(
            logprob_kind=self.engine.logprob_kind,
            template_hash=self.template.template_hash,
            tokenizer_hash=self.template.codec.tokenizer_hash,
            enforces_schema=self.engine.enforces_schema,
            processor_hash=self.template.vision.processor_hash if self.template.vision else "",
        )


class Stop(Enum):
    """Who gave a call up before its end."""

    CLIENT_GONE = "the client closed the connection"
    SESSION_CLOSED = "the session was closed"
    SHUTDOWN = "the proxy shuts down; try again"


_FORGOTTEN = ModelRequest(messages=())
"""An answered call keeps no copy of its whole conversation: a session of n calls would keep n of them."""

_COMPLETION_OF_STOP = {
    Stop.CLIENT_GONE: Completion.CLIENT_ABORTED,
    Stop.SESSION_CLOSED: Completion.LATE,
    Stop.SHUTDOWN: Completion.ENGINE_ABORTED,
}


class Call:
    """Runs once, in a task of its own. Clients come and go: the first one, and known retries of it."""

    def __init__(self, parts: Parts, session: LiveSession, intent: HarnessCall, marks: RetryMarks) -> None:
        self.marks = marks
        self.state = CallState.OPEN
        self.lost = False
        self.retried = False
        self._parts = parts
        self._session = session
        self._intent = intent
        self._broadcast = Broadcast(on_end=self._terminal_written, on_left=self._client_left)
        self._record: RecordedCall | None = None
        self._told = Delivered(state="unknown")
        self._stop: Stop | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._sampled = False

    def attach(self, *, retry: bool = False) -> Feed:
        self._session.clients += 1
        self.lost = False  # somebody waits for it; lost again where they leave without its end
        return self._broadcast.attach(retry=retry)

    def stop(self, why: Stop) -> None:
        """Give it up, if it is still being sampled; what was sampled is recorded."""
        if self._stop is not None or self._sampled:
            return
        self._stop, self.state = why, CallState.FAILED
        if self._sampling is not None:
            self._sampling.cancel()

    async def run(self) -> None:
        try:
            await self._run()
        except OpenForgeError as error:
            self._fail(error)
        except Exception:  # the boundary: one call's fault must not end the others
            _log.exception("call %s failed", self._intent.call_id)
            self._session.count("internal_errors")
            self._fail(OpenForgeError("the proxy failed; the call is not recorded"))
        finally:
            self._session.calls.discard(self)
            self._intent = replace(self._intent, request=_FORGOTTEN)
            if self._broadcast.abandoned:
                self._clients_gone()

    async def _run(self) -> None:
        await self._durably(self._parts.store.intent(self._intent))
        self._refuse_hopeless()
        answer, planned = await self._plan()
        length = len(planned.prompt.ids)
        if length + 1 > self._parts.engine.context_length:
            await self._refuse(planned, answer, context_full(length, self._parts.engine.context_length))
        outcome, error = await self._sample(planned, answer)
        await self._commit(planned, answer, outcome)
        if error is not None:
            raise error
        self._finish(planned, answer, outcome)

    def _refuse_hopeless(self) -> None:
        """A text that cannot fit is not encoded at all: it would cost seconds. Its intent stays without a record."""
        codec, limit = self._parts.template.codec, self._parts.engine.context_length
        messages = self._intent.request.messages
        if (
            not codec.longest_token
            or 4 * sum([len(message.text) for message in messages]) < limit * codec.longest_token
        ):
            return
        texts = (message.text for message in messages if message.role in (Role.USER, Role.TOOL))
        least = sum(map(codec.fewest_ids, texts))
        if least + 1 > limit:
            self._session.fail("context_full")
            raise context_full(least, limit)

    async def _plan(self) -> tuple[Answer, Planned]:
        """From here on the call has its place in the order of sampling."""
        request, engine = self._intent.request, self._parts.engine
        prompt, index = await self._session.assemble(request)
        room = engine.context_length - len(prompt.ids)
        used = used_sampling(request.sampling, self._session.session.sampling, self._parts.config.max_tokens, room)
        planned = Planned(prompt=prompt, index=index, sampling=used, started_at=self._parts.clock())
        return Answer(_parser(self._parts.template, request)), planned

    async def _refuse(self, planned: Planned, answer: Answer, error: AssemblyError) -> None:
        self._session.fail("context_full")
        nothing = Delivered(state="prefix")
        await self._commit(planned, answer, Outcome(completion=Completion.ERROR, delivered=nothing, error=error.code))
        raise error

    async def _sample(self, planned: Planned, answer: Answer) -> tuple[Outcome, OpenForgeError | None]:
        """Whatever happens to the engine, what it gave is kept."""
        try:
            async with asyncio.timeout(self._parts.config.call_timeout_s):
                await self._generate(planned, answer)
            parsed = answer.end()
        except asyncio.CancelledError:
            if self._stop is None or self._sampling is None:
                raise
            self._sampling.uncancel()
            return self._given_up(answer, _COMPLETION_OF_STOP[self._stop], _error_of(self._stop, self._session))
        except EngineAborted as error:
            return self._given_up(answer, Completion.ENGINE_ABORTED, error)
        except EngineError as error:
            return self._given_up(answer, Completion.ERROR, error)
        except TimeoutError:
            limit = self._parts.config.call_timeout_s
            return self._given_up(answer, Completion.ERROR, EngineTimeout(f"no answer within {limit:g} s; try again"))
        except Exception as error:  # the boundary: an engine may raise what it likes, its call is recorded
            _log.exception("call %s: the engine failed", self._intent.call_id)
            return self._given_up(answer, Completion.ERROR, EngineError(f"the engine failed: {type(error).__name__}"))
        finally:
            self._sampling, self._sampled = None, True
        finish = Finish.STOP_STRING if answer.stopped else parsed.finish or Finish.STOP
        unknown = Delivered(state="unknown")
        return Outcome(completion=Completion.COMPLETE, delivered=unknown, parsed=parsed, finish=finish), None

    async def _generate(self, planned: Planned, answer: Answer) -> None:
        self._sampling = asyncio.current_task()
        if self._stop is not None:
            raise asyncio.CancelledError
        self._push([self._started(planned)], answer)
        request = GenerateRequest(
            request_id=self._intent.call_id,
            session_id=self._intent.session_id,
            prompt_ids=planned.prompt.ids,
            sampling=planned.sampling,
            stop_ids=self._parts.template.codec.stop_ids,
            output_schema=self._intent.request.output_schema,
            images=planned.prompt.images,
            image_bytes=self._intent.request.images,
            conversation=self._intent.request,
        )
        async with aclosing(self._parts.engine.generate(request)) as chunks:
            async for chunk in chunks:
                self._push(answer.take(chunk), answer)
                if answer.stopped:
                    break

    def _given_up(
        self, answer: Answer, completion: Completion, error: OpenForgeError
    ) -> tuple[Outcome, OpenForgeError]:
        if completion in (Completion.ERROR, Completion.ENGINE_ABORTED):
            self._session.fail("context_full" if error.code == "context_length_exceeded" else "engine_errors")
        outcome = Outcome(
            completion=completion, delivered=self._broadcast.delivered, parsed=answer.cut(), error=str(error)
        )
        return outcome, error

    async def _commit(self, planned: Planned, answer: Answer, outcome: Outcome) -> None:
        record = recorded(self._intent, planned, answer, outcome, self._parts.provenance, ended_at=self._parts.clock())
        await self._durably(self._parts.store.commit(record, self._intent.request.images))
        self._told = record.delivered
        self._record = record
        self._session.count(outcome.completion.value)
        self._session.count("prompt_tokens", len(planned.prompt.ids))
        self._session.count("sampled_tokens", len(record.sampled_ids))
        for name, number in record.counters.items():
            self._session.count(name, number)
        self._session.remember(record)

    async def _durably(self, write: Coroutine[object, object, None]) -> None:
        limit = self._parts.config.commit_timeout_s
        try:
            async with asyncio.timeout(limit):
                await write
        except (StoreError, TimeoutError) as error:
            self._session.fail("store_errors")
            _log.error("call %s is not recorded: %s", self._intent.call_id, error or f"nothing within {limit:g} s")
            raise StoreError("the call could not be recorded, so it failed; try again") from error

    def _finish(self, planned: Planned, answer: Answer, outcome: Outcome) -> None:
        spans = outcome.parsed.spans if outcome.parsed else ()
        usage = Usage(
            prompt_tokens=len(planned.prompt.ids),
            sampled_tokens=len(answer.ids),
            reasoning_tokens=sum(span.stop - span.start for span in spans if span.kind is SpanKind.REASONING),
        )
        if outcome.finish is Finish.LENGTH and sum((usage.prompt_tokens, usage.sampled_tokens)) >= (
            self._parts.engine.context_length
        ):
            self._session.count("cut_by_context")
        finish = outcome.finish or Finish.STOP
        end = CallFinished(finish=finish, usage=usage, stop_string=answer.parser.stop_string)
        rest = outcome.parsed.events if outcome.parsed else []
        self.state = CallState.COMMITTED
        self._session.last_failure = ""
        self._broadcast.push(Batch(events=(*rest, end), shown=len(answer.ids), last=True))

    def _fail(self, error: OpenForgeError) -> None:
        self.state = CallState.FAILED
        event = CallFailed(
            message=str(error), code=error.code, http_status=error.http_status, context_full=error.context_full
        )
        self._broadcast.push(Batch(events=(event,), last=True, error=error))

    def _push(self, events: list[CallEvent], answer: Answer) -> None:
        if events:
            self._broadcast.push(Batch(events=tuple(events), shown=answer.parser.shown()))

    def _started(self, planned: Planned) -> CallStarted:
        return CallStarted(
            call_id=self._intent.call_id,
            model=self._intent.request.model,
            created=int(self._intent.received_at),
            prompt_tokens=len(planned.prompt.ids),
        )

    def _terminal_written(self, feed: Feed) -> None:
        """At once, before the client can send its next request."""
        if self.state is CallState.COMMITTED:
            self.lost = False
            self.retried = self.retried or feed.retry
            self._learn()

    def _client_left(self) -> None:
        self._session.clients -= 1
        if self._broadcast.abandoned:
            self._clients_gone()

    def _clients_gone(self) -> None:
        self.stop(Stop.CLIENT_GONE)
        if self._record is None:
            return
        self.lost = self.state is CallState.COMMITTED and not self._broadcast.ended
        self._learn()
        self._broadcast.compact()

    def _learn(self) -> None:
        """What is known of the delivery goes to the assembler now, and to the store in its own time."""
        record, delivered = self._record, self._broadcast.delivered
        if record is None or delivered == self._told:
            return
        self._told = delivered
        if self._session.sealed:
            self._session.count("deliveries_after_the_close")
            return
        self._session.remember(replace(record, delivered=delivered))
        self._parts.spawn(self._session, self._deliver(delivered))

    async def _deliver(self, delivered: Delivered) -> None:
        try:
            await self._durably(self._parts.store.deliver(self._intent.session_id, self._intent.call_id, delivered))
        except StoreError:
            self._session.count("deliveries_not_recorded")


def _parser(template: Template, request: ModelRequest) -> AnswerParser:
    return AnswerParser(
        template.codec,
        tools=request.tools,
        stop=request.sampling.stop,
        mint=new_tool_call_id,
        tool_choice=request.tool_choice,
        family=template.family,
    )


def _error_of(stop: Stop, session: LiveSession) -> OpenForgeError:
    if stop is Stop.SESSION_CLOSED:
        return session_over(session.session.session_id)
    return EngineAborted(stop.value)
