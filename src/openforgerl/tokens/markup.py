"""The parts of an answer: `<think>` at its start, then text and calls as its family writes them.

What it finds depends on the whole text only, never on how it was cut into chunks. What does not parse is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from openforgerl.records import SpanKind, ToolSpec
from openforgerl.tokens.families import HERMES, Family
from openforgerl.tokens.tool_json import skip_blank

THINK, THINK_END = "<think>", "</think>"
REASONING_CLOSE = "\n</think>\n\n"
_FIRST_KEYS = ('"name"', '"type"', '"parameters"', '"arguments"')
"""Of a call without an opening: any other object is text, and is not held back."""
_FIRST_LONGEST = max(map(len, _FIRST_KEYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Characters [start, stop) of an answer, markup included, and what a reader sees of them."""

    kind: SpanKind
    start: int
    stop: int
    text: str = ""
    """Of reasoning and text: without markup."""
    name: str = ""
    arguments: str = ""


@lru_cache(maxsize=64)
def _longest(marks: tuple[str, ...]) -> int:
    return max(map(len, marks), default=0)


def held(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that may be the beginning of one of `marks`."""
    longest = min(len(text), _longest(marks) - 1)
    end = text[len(text) - longest :]
    for mark in marks:
        if mark[0] in end:
            break
    else:
        return 0
    for length in range(longest, 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks if len(mark) > length):
            return length
    return 0


class Scanner:
    """Text in, parts out, as soon as they are certain; a text or reasoning comes in several parts, a call in one."""

    def __init__(self, *, tools: Sequence[ToolSpec] | None, family: Family = HERMES) -> None:
        """`tools`: those that are offered; None where markup of calls is text like any other."""
        self.resolved = 0
        """Characters that are decided; those behind it are held back."""
        self.unparsed_calls = 0
        self._tools = tools
        self._family = family
        self._marks = (family.separator + family.opening, family.opening)
        self._buffer = ""
        self._final = False
        self._step = self._start
        self._after_call = False
        self._bare = bool(family.bare) and tools is not None
        """A call without its opening may stand next."""
        self._reader = family.reader((), 0)
        self._otherwise = 0
        """Of the call that began: how much is text where it is none."""
        self._marked = True

    def feed(self, text: str) -> list[Part]:
        self._buffer += text
        return self._run()

    def finish(self) -> list[Part]:
        """The parts that were held back."""
        self._final = True
        return self._run()

    def _run(self) -> list[Part]:
        parts: list[Part] = []
        # A step returns the parts that it decided, or None where it must see more text.
        while (found := self._step()) is not None:
            parts += found
        return parts

    def _take(self, kind: SpanKind, count: int, text: str, name: str = "", arguments: str = "") -> list[Part]:
        """`count` characters of the buffer are decided."""
        if not count:
            return []
        start, self.resolved = self.resolved, self.resolved + count
        self._buffer = self._buffer[count:]
        return [Part(kind=kind, start=start, stop=self.resolved, text=text, name=name, arguments=arguments)]

    def _start(self) -> list[Part] | None:
        text = self._buffer.lstrip()
        if text.startswith(THINK):
            count = len(self._buffer) - len(text) + len(THINK)
            if count == len(self._buffer) and not self._final:
                return None
            count += self._buffer.startswith("\n", count)
            self._step = self._reasoning
            return self._take(SpanKind.REASONING, count, "")
        if THINK.startswith(text) and not self._final:
            return None
        self._step = self._text
        return []

    def _reasoning(self) -> list[Part] | None:
        end = self._buffer.find(THINK_END)
        if end >= 0:
            self._step = self._after_reasoning
            return self._take(SpanKind.REASONING, end + len(THINK_END), self._buffer[:end].removesuffix("\n"))
        count = len(self._buffer)
        if not self._final:
            count -= held(self._buffer, ("\n" + THINK_END, THINK_END))
        return self._take(SpanKind.REASONING, count, self._buffer[:count]) or None

    def _after_reasoning(self) -> list[Part] | None:
        lines = len(self._buffer) - len(self._buffer.lstrip("\n"))
        if lines < 2 and lines == len(self._buffer) and not self._final:
            return None
        self._step = self._text
        return self._take(SpanKind.REASONING, min(lines, 2), "")

    def _text(self) -> list[Part] | None:
        if not self._buffer:
            return None
        if self._bare:
            place = self._bare_call()
            if place is None or place >= 0:
                return None if place is None else self._begin(place, place + 1, marked=False)
        found = -1 if self._tools is None else self._buffer.find(self._family.opening)
        if found >= 0:
            return self._begin_marked(found)
        blank = self._after_call and not self._buffer.strip()
        count = len(self._buffer)
        if self._tools is not None and not self._final:
            count -= held(self._buffer, self._marks)
            if self._after_call and not self._buffer[:count].strip():
                return None
        if self._final and blank:
            # White space behind the last call is nobody's: no reader is shown it.
            return self._take(SpanKind.TEXT, count, "")
        return self._take_text(count) or None

    def _take_text(self, count: int) -> list[Part]:
        if count:
            self._after_call = self._bare = False
        return self._take(SpanKind.TEXT, count, self._buffer[:count])

    def _bare_call(self) -> int | None:
        """The place of the brace that begins a call without an opening; -1 for none, None where more text decides."""
        place = skip_blank(self._buffer, 0)
        if self._after_call and self._buffer.startswith(self._family.bare, place):
            place = skip_blank(self._buffer, place + len(self._family.bare))
        elif self._after_call and place < len(self._buffer):
            return -1
        inner = skip_blank(self._buffer, place + 1)
        begun = self._buffer[place : place + 1] + self._buffer[inner : inner + _FIRST_LONGEST]
        if begun.startswith(tuple("{" + key for key in _FIRST_KEYS)):
            return place
        return -1 if self._final or not any(("{" + key).startswith(begun) for key in _FIRST_KEYS) else None

    def _begin_marked(self, found: int) -> list[Part]:
        before = self._buffer[:found].removesuffix(self._family.separator)
        count = 0 if self._after_call and not before.strip() else len(before)
        start = found + len(self._family.opening) - count
        return self._take_text(count) + self._begin(start, start, marked=True)

    def _begin(self, start: int, otherwise: int, *, marked: bool) -> list[Part]:
        """A call begins at a place of the buffer; where it is none, what is before `otherwise` is text."""
        self._reader = self._family.reader(self._tools or (), start)
        self._otherwise, self._marked = otherwise, marked
        self._step = self._call
        return []

    def _call(self) -> list[Part] | None:
        read = self._reader.read(self._buffer)
        if read == "more" and not self._final:
            return None
        if isinstance(read, str):
            return self._no_call()
        self._step, self._after_call, self._bare = self._text, True, bool(self._family.bare)
        return self._take(SpanKind.TOOL_CALL, read.stop, "", read.name, read.arguments)

    def _no_call(self) -> list[Part]:
        """What looked like a call is text, up to and with its opening mark."""
        self.unparsed_calls += self._marked
        self._step = self._text
        return self._take_text(self._otherwise)


def reasoning_start(text: str) -> int:
    """The place of the first character of an answer's reasoning, which it begins with."""
    start = text.index(THINK) + len(THINK)
    return start + text.startswith("\n", start)


def merged(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Neighbouring parts of one text or one reasoning, joined."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.kind is part.kind and last.stop == part.start and part.kind is not SpanKind.TOOL_CALL:
            joined[-1] = replace(last, stop=part.stop, text=last.text + part.text)
        else:
            joined.append(part)
    return tuple(joined)


def scan(text: str, *, tools: Sequence[ToolSpec] | None, family: Family = HERMES) -> tuple[Part, ...]:
    """The parts of a whole answer."""
    scanner = Scanner(tools=tools, family=family)
    return merged(scanner.feed(text) + scanner.finish())
