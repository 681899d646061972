"""Server-sent events, as they come off a connection: the data of each event, whatever the cuts between reads."""

from __future__ import annotations

from collections.abc import Iterator

DONE = b"[DONE]"


class EventSplitter:
    """Feed it bytes; it gives the data of every line that is complete. Other fields than `data` are passed over."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[bytes]:
        if b"\n" not in part:
            self._held.append(part)
            return
        *lines, rest = b"".join([*self._held, part]).split(b"\n")
        self._held = [rest] if rest else []
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()

    @property
    def cut(self) -> bool:
        """Bytes of an incomplete line were given."""
        return bool(self._held)
