"""How a call's events reach its clients, and what the call learns about their delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from openforgerl.errors import OpenForgeError
from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallStarted,
    Delivered,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Events that came from one chunk of sampled ids."""

    events: tuple[CallEvent, ...]
    shown: int = 0
    """Sampled ids whose text is completely sent once these events are."""
    last: bool = False
    error: OpenForgeError | None = None
    """Why the call failed; the last event is then CallFailed."""

    @property
    def gives(self) -> bool:
        """It holds a part of the answer."""
        return not all(isinstance(event, (CallStarted, CallFailed)) for event in self.events)


class Feed:
    """One client's view of a call. Whoever reads it says what was written, and leaves it exactly once."""

    def __init__(self, broadcast: Broadcast, *, retry: bool) -> None:
        self._broadcast = broadcast
        self._ready: list[Batch] = []
        self._waiting: asyncio.Future[None] | None = None
        self.retry = retry
        """This client asked again for an answer that was another's."""
        self.shown = 0
        """Sampled ids whose text was completely written to this client."""
        self.ended = False
        """The terminal event was written."""
        self.uncertain = False
        """A write was begun whose end nobody knows."""

    def push(self, batch: Batch) -> None:
        self._ready.append(batch)
        _wake(self._waiting)

    async def answering(self, patience_s: float) -> OpenForgeError | None:
        """Waits until the answer has begun or failed, or patience ends. The failure of a call that gave nothing."""
        try:
            async with asyncio.timeout(patience_s):
                await self._broadcast.answering.wait()
        except TimeoutError:
            return None
        return self._broadcast.early_failure

    async def batches(self, *, idle_s: float | None = None) -> AsyncIterator[Batch | None]:
        """What is ready, as one, until the last; None each time that nothing came for `idle_s` seconds."""
        last = False
        while not last:
            if not self._ready:
                await self._arrival(idle_s)
            if not self._ready:
                yield None
                continue
            ready, self._ready = self._ready, []
            last = ready[-1].last
            yield _together(ready)

    async def _arrival(self, idle_s: float | None) -> None:
        """Returns when there is something, or after `idle_s` seconds."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = None if idle_s is None else loop.call_later(idle_s, _wake, self._waiting)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def wrote(self, batch: Batch) -> None:
        """Every byte of the batch was handed to the client's connection."""
        self.shown = max(self.shown, batch.shown)
        self.ended = self.ended or batch.last
        self._broadcast.wrote(self)

    def leave(self) -> None:
        self._broadcast.leave(self)


class Broadcast:
    """The event stream of one call: kept, so that a known retry gets what the first client got."""

    def __init__(self, *, on_end: Callable[[Feed], None], on_left: Callable[[], None]) -> None:
        self._on_end = on_end
        self._on_left = on_left
        self._batches: list[Batch] = []
        self._feeds: set[Feed] = set()
        self._shown = 0
        self._ended = False
        self._uncertain = False
        self.answering = asyncio.Event()

    @property
    def abandoned(self) -> bool:
        return not self._feeds

    @property
    def ended(self) -> bool:
        """Some client was written the terminal event."""
        return self._ended

    @property
    def early_failure(self) -> OpenForgeError | None:
        """The error of a call that failed before it gave anything."""
        began = any(batch.gives for batch in self._batches)
        return self._batches[-1].error if self._batches and not began else None

    @property
    def delivered(self) -> Delivered:
        """The best that any client got."""
        if self._ended and self._batches[-1].error is None:
            return Delivered(state="full")
        if self._uncertain and not self._ended:
            return Delivered(state="unknown")
        return Delivered(state="prefix", count=self._shown)

    def attach(self, *, retry: bool = False) -> Feed:
        feed = Feed(self, retry=retry)
        for batch in self._batches:
            feed.push(batch)
        self._feeds.add(feed)
        return feed

    def push(self, batch: Batch) -> None:
        self._batches.append(batch)
        for feed in self._feeds:
            feed.push(batch)
        if not self.answering.is_set() and (batch.last or batch.gives):
            self.answering.set()

    def wrote(self, feed: Feed) -> None:
        self._shown = max(self._shown, feed.shown)
        if feed.ended:
            self._ended = True
            self._on_end(feed)

    def leave(self, feed: Feed) -> None:
        self._uncertain = self._uncertain or (feed.uncertain and not feed.ended)
        self._feeds.discard(feed)
        self._on_left()

    def compact(self) -> None:
        """A finished stream needs no more than one batch."""
        if self.abandoned and len(self._batches) > 1 and self._batches[-1].last:
            self._batches = [_compacted(self._batches)]


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _together(batches: Sequence[Batch]) -> Batch:
    """Batches that follow each other, as one."""
    if len(batches) == 1:
        return batches[0]
    events = tuple([event for batch in batches for event in batch.events])
    last = batches[-1]
    return Batch(events=events, shown=max(batch.shown for batch in batches), last=last.last, error=last.error)


def _compacted(batches: Sequence[Batch]) -> Batch:
    """Deltas that follow each other become one."""
    events: list[CallEvent] = []
    for event in (event for batch in batches for event in batch.events):
        joined = _joined(events[-1], event) if events else None
        if joined is not None:
            events.pop()
        events.append(joined or event)
    return replace(batches[-1], events=tuple(events))


def _joined(left: CallEvent, right: CallEvent) -> CallEvent | None:
    match left, right:
        case TextDelta(), TextDelta():
            return TextDelta(text=left.text + right.text)
        case ReasoningDelta(), ReasoningDelta():
            return ReasoningDelta(text=left.text + right.text)
        case ToolArgumentsDelta(), ToolArgumentsDelta() if left.index == right.index:
            return ToolArgumentsDelta(index=left.index, text=left.text + right.text)
    return None
