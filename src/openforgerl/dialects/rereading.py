"""Reading a body that begins as an earlier one did: what stands unchanged is not parsed again.

Exact: what a JSON parser made of the bytes before a place depends on those bytes only, and they are compared, never
hashed. Whatever is out of the ordinary is read the plain way, which also finds the words for an error.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

import numpy as np

from openforgerl.dialects.jsontext import DECODER, Json, Kept, broken_characters, read_json, whole_characters
from openforgerl.errors import DialectError

BODIES_MOST = 8
"""Conversations of one session that are remembered: the main one and its sub-agents."""
_BLANK = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key of a body, its value, and the bytes [start, stop) that the value is written in."""

    key: str
    value: Json
    start: int
    stop: int
    ends: array[int]
    """Of a list: where each of its leading objects ends."""


@dataclass(frozen=True, slots=True)
class _Body:
    raw: bytes
    entries: tuple[_Entry, ...]


class JsonMemory:
    """The latest bodies of one session. The values that it gives are shared by requests: nobody changes them."""

    def __init__(self) -> None:
        self._bodies: tuple[_Body, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the bodies that it holds."""
        return sum(len(body.raw) for body in self._bodies)

    def forget(self) -> None:
        self._bodies = ()

    def fresh(self, raw: bytes) -> int:
        """Bytes of a body that were in no earlier one."""
        return len(raw) - self._nearest(raw)[1]

    def read(self, raw: bytes) -> Json:
        """As `read_json`: the same value, the same errors."""
        nearest, shared = self._nearest(raw)
        place, count = _last_list(nearest, shared)
        walk = _Walk(raw, nearest)
        try:
            value = walk.resumed(place, count) if count else walk.whole()
        except (ValueError, DialectError):
            return read_json(raw)
        holds_it = nearest is not None and bool(count) and count == len(nearest.entries[place].ends)
        others = tuple(body for body in self._bodies if not (holds_it and body is nearest))
        self._bodies = (_Body(raw, tuple(walk.entries)), *others)[:BODIES_MOST]
        return value

    def _nearest(self, raw: bytes) -> tuple[_Body | None, int]:
        """The body with which it shares the most leading bytes, and their number."""
        best: tuple[_Body | None, int] = (None, 0)
        for body in self._bodies:
            shared = _shared(body.raw, raw)
            if shared > best[1]:
                best = (body, shared)
            if any(entry.ends and entry.ends[-1] <= shared <= entry.stop for entry in body.entries):
                break
        return best


def _shared(left: bytes, right: bytes) -> int:
    """Number of leading bytes that both have."""
    length = min(len(left), len(right))
    differing = np.frombuffer(left, np.uint8, length) != np.frombuffer(right, np.uint8, length)
    place = int(differing.argmax()) if length else 0
    return place if length and differing[place] else length


def _last_list(body: _Body | None, shared: int) -> tuple[int, int]:
    """The last list of which some objects lie within the shared bytes: its place, and their number; (0, 0): none."""
    for place, entry in reversed(tuple(enumerate(body.entries if body else ()))):
        if entry.ends and entry.ends[0] <= shared:
            return place, int(np.searchsorted(np.frombuffer(entry.ends, np.int64), shared, side="right"))
    return 0, 0


@dataclass(slots=True)
class _Walk:
    """One body, read entry by entry. Raises ValueError and DialectError where the plain way is to be taken."""

    raw: bytes
    earlier: _Body | None
    entries: list[_Entry] = field(default_factory=list)
    _text: str = ""
    """Of the bytes that are read."""
    _at: int = 0
    _broken: bool = False
    _known: tuple[int, int] = (0, 0)
    """A place in the text, and the same place in the bytes."""

    def whole(self) -> Json:
        self._begin(0)
        self._expect("{")
        return self._rest(going=True)

    def resumed(self, place: int, count: int) -> Json:
        """Behind the first `count` objects of a list of the earlier body."""
        if self.earlier is None:
            raise ValueError("there is no earlier body")
        self.entries += self.earlier.entries[:place]
        entry = self.earlier.entries[place]
        self._begin(entry.ends[count - 1])
        items, ends = entry.value[:count] if isinstance(entry.value, list) else [], entry.ends[:count]
        self._list(items, ends)
        self.entries.append(_Entry(entry.key, items, entry.start, self._byte(), ends))
        return self._rest(going=self._next("}"))

    def _begin(self, start: int) -> None:
        self._text = self.raw[start:].decode()
        self._known = (0, start)
        self._broken = broken_characters(self._text)

    def _rest(self, *, going: bool) -> Json:
        while going:
            self._entry()
            going = self._next("}")
        self._skip()
        if self._at != len(self._text):
            raise ValueError("there is something behind the body")
        return {entry.key: entry.value for entry in self.entries}

    def _entry(self) -> None:
        self._skip()
        key = self._value()
        if not isinstance(key, str) or "\ufffd" in key:
            raise ValueError("no plain key")
        self._expect(":")
        self._skip()
        start, ends = self._byte(), array("q")
        if (found := self._unchanged(key, start)) is not None:
            self.entries.append(found)
            return
        value: Json = []
        if isinstance(value, list) and self._text.startswith("[", self._at):
            self._at += 1
            self._list(value, ends)
        else:
            value = self._value()
        self.entries.append(_Entry(key, value, start, self._byte(), ends))

    def _unchanged(self, key: str, start: int) -> _Entry | None:
        """The value of the earlier body, where the same bytes stand here; they end by themselves."""
        for entry in self.earlier.entries if self.earlier else ():
            if entry.key == key and entry.stop - entry.start > 1 and self.raw[start : start + 1] in b'{["':
                written = self.earlier.raw[entry.start : entry.stop] if self.earlier else b""
                if self.raw.startswith(written, start):
                    self._at += len(written) if self._text.isascii() else len(written.decode())
                    moved = array("q", [end - entry.start + start for end in entry.ends])
                    return _Entry(key, entry.value, start, start + len(written), moved)
        return None

    def _list(self, items: list[Json], ends: array[int]) -> None:
        """The rest of a list behind the items that are known."""
        if not items:
            self._skip()
            if self._text.startswith("]", self._at):
                self._at += 1
                return
            self._item(items, ends)
        while self._next("]"):
            self._skip()
            self._item(items, ends)

    def _item(self, items: list[Json], ends: array[int]) -> None:
        value = self._value()
        if isinstance(value, dict):
            value = Kept(value)
            if len(ends) == len(items):
                ends.append(self._byte())
        items.append(value)

    def _value(self) -> Json:
        value: Json
        value, self._at = DECODER.raw_decode(self._text, self._at)
        return whole_characters(value) if self._broken else value

    def _next(self, end: str) -> bool:
        """Over a comma: True; over the end: False."""
        self._skip()
        found = self._text[self._at : self._at + 1]
        if found not in (",", end):
            raise ValueError("neither a comma nor the end")
        self._at += 1
        return found == ","

    def _expect(self, character: str) -> None:
        self._skip()
        if not self._text.startswith(character, self._at):
            raise ValueError(f"{character} is missing")
        self._at += 1

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _byte(self) -> int:
        """The place in the bytes."""
        at, byte = self._known
        size = self._at - at if self._text.isascii() else len(self._text[at : self._at].encode())
        self._known = (self._at, byte + size)
        return byte + size
