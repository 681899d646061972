"""A call between its marks, read while its text still grows. What it says depends on the whole text only."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from openforgerl.records import ToolSpec
from openforgerl.tokens.tool_json import ObjectEnd, argument_types, json_type, parse_call, skip_blank


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCall:
    """A whole call."""

    stop: int
    """The place behind it, markup included."""
    name: str
    arguments: str


Read = ReadCall | Literal["more", "no call"]


class CallReader(Protocol):
    """Of one call, which begins at a fixed place of the text."""

    def read(self, text: str) -> Read:
        """`text` is what was read before, and more."""


class JsonReader:
    """An object with a name and arguments, then `closing`."""

    def __init__(self, start: int, *, closing: str = "", keys: Sequence[str] = ("arguments",)) -> None:
        """`keys`: what the arguments may be called."""
        self._start = start
        self._closing = closing
        self._keys = keys
        self._end = ObjectEnd(start)

    def read(self, text: str) -> Read:
        inner = skip_blank(text, self._start)
        if not text.startswith("{", inner):
            return "more" if inner == len(text) else "no call"
        end = self._end.find(text)
        if end is None:
            return "no call" if self._end.broken else "more"
        place = skip_blank(text, end) if self._closing else end
        if not text.startswith(self._closing, place):
            return "more" if self._closing.startswith(text[place:]) else "no call"
        call = parse_call(text[self._start : end], self._keys)
        if call is None:
            return "no call"
        return ReadCall(stop=place + len(self._closing), name=call[0], arguments=call[1])


_CLOSING = "</parameter>"
_FUNCTION = re.compile(r"[ \t\r\n]*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"[ \t\r\n]*<parameter=([^<>\n]+)>")
_END = re.compile(r"[ \t\r\n]*</function>[ \t\r\n]*</tool_call>")
_BEGUN_NAME = re.compile(r"(?:<function=|<parameter=)[^<>\n]*")
_BEGUN_END = re.compile(r"</function>[ \t\r\n]*(?P<rest>.*)", re.DOTALL)


class XmlReader:
    """A function with one element a parameter; the tool's schema says which values are no strings.

    A value ends at the first closing mark that another parameter or the end of the function follows.
    """

    def __init__(self, start: int, tools: Sequence[ToolSpec]) -> None:
        self._at = start
        self._tools = tools
        self._name = self._key = ""
        self._value_from: int | None = None
        """Set inside a value; `_at` is then the place up to which no end of it was found."""
        self._values: dict[str, str] = {}
        self._found: Read | None = None

    def read(self, text: str) -> Read:
        while self._found is None:
            if not (self._value(text) if self._value_from is not None else self._tag(text)):
                return self._found or "more"
        return self._found

    def _tag(self, text: str) -> bool:
        """Pass an opening or the end; False where more text is needed."""
        if found := (_PARAMETER if self._name else _FUNCTION).match(text, self._at):
            self._at = found.end()
            if self._name:
                self._key, self._value_from = found[1], self._at
            self._name = self._name or found[1]
        elif self._name and (found := _END.match(text, self._at)):
            self._found = ReadCall(stop=found.end(), name=self._name, arguments=self._arguments())
        elif not _may_go_on(text[skip_blank(text, self._at) :], "<parameter=" if self._name else "<function="):
            self._found = "no call"
        else:
            return False
        return True

    def _value(self, text: str) -> bool:
        end = text.find(_CLOSING, self._at)
        if end < 0:
            self._at = max(self._at, len(text) - len(_CLOSING) + 1)
            return False
        behind = text[skip_blank(text, end + len(_CLOSING)) :][: len("<parameter=")]
        if behind in ("<parameter=", "</function>"):
            value = text[self._value_from : end]
            self._values[self._key] = value.removeprefix("\n").removesuffix("\n")
            self._value_from, self._at = None, end + len(_CLOSING)
        elif "<parameter=".startswith(behind) or "</function>".startswith(behind):
            return False
        else:
            self._at = end + len(_CLOSING)
        return True

    def _arguments(self) -> str:
        types = argument_types(self._tools, self._name)
        members = [f"{json.dumps(key, ensure_ascii=False)}: {typed(value, types.get(key))}"
                   for key, value in self._values.items()]  # fmt: skip
        return "{" + ", ".join(members) + "}"


def _may_go_on(rest: str, opening: str) -> bool:
    """Whether more text can make an opening, or the end of a function, of this one."""
    if any(mark.startswith(rest) for mark in (opening, "</function>")):
        return True
    ending = _BEGUN_END.fullmatch(rest)
    if ending and opening == "<parameter=":
        return "</tool_call>".startswith(ending["rest"])
    return rest.startswith(opening) and _BEGUN_NAME.fullmatch(rest) is not None


_WORDS = {"True": "true", "False": "false", "None": "null"}
"""As a template prints Python's values."""


def typed(value: str, types: frozenset[str] | None) -> str:
    """A value as JSON: a string, unless the schema has another type and the value reads as one of that."""
    written = value.strip()
    written = _WORDS.get(written, written)
    if types and ("string" not in types or written == "null") and json_type(written) & types:
        return written
    return json.dumps(value, ensure_ascii=False)
