"""What a program prints, kept up to a cap: the head and the tail, with the middle cut out and counted."""

from __future__ import annotations

import asyncio
import os

_CHUNK = 1 << 16
_FLOOD_PAUSE_S = 0.002
"""Rest after a full chunk that was thrown away: a program that prints without end must not keep the event loop busy."""


class CappedOutput:
    """Bytes in the order of arrival; of more than `cap` the first half and the last half of the cap stay."""

    def __init__(self, cap: int) -> None:
        self._head_cap = cap // 2
        self._tail_cap = cap - self._head_cap
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def feed(self, data: bytes) -> None:
        room = self._head_cap - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_cap + _CHUNK:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_cap
        if excess > 0:
            del self._tail[:excess]
            self.dropped += excess

    def value(self) -> bytes:
        self._trim()
        return bytes(self._head + self._tail)


class OutputReader:
    """Reads a pipe to its end, in the event loop, into a CappedOutput. Owns the descriptor."""

    def __init__(self, descriptor: int, cap: int) -> None:
        os.set_blocking(descriptor, False)
        self.output = CappedOutput(cap)
        self.ended = asyncio.Event()
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        dropped = self.output.dropped
        self.output.feed(data)
        if self.output.dropped > dropped or (dropped and len(data) == _CHUNK):
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(_FLOOD_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._descriptor, self._read)

    def close(self) -> None:
        """Stop reading; idempotent."""
        if self.ended.is_set():
            return
        self.ended.set()
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
