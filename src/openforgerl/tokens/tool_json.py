"""The JSON of tools: calls are checked strictly, their arguments cut out exactly as written; types of a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NoReturn

from openforgerl.records import ToolSpec

_BLANK = re.compile(r"[ \t\n\r]*")
_OUTSIDE = re.compile(r"[^\s\[\]:,+.\-0-9A-Za-z]")
_INSIDE = re.compile(r'["\\]')


def parse_call(text: str, keys: Sequence[str] = ("arguments",)) -> tuple[str, str] | None:
    """(name, arguments as written) of {"name": str, "arguments": object}; None where the text is anything else.

    `keys`: what the arguments may be called; one of them is there.
    """
    try:
        members = _members(text)
    except (ValueError, RecursionError):
        return None
    name, _ = members.get("name", (None, ""))
    there = [key for key in keys if key in members]
    arguments, written = members[there[0]] if len(there) == 1 else (None, "")
    return (name, written) if isinstance(name, str) and name and isinstance(arguments, dict) else None


def _members(text: str) -> dict[str, tuple[object, str]]:
    """Key -> (value, its text) of one JSON object. Raises ValueError."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    members: dict[str, tuple[object, str]] = {}
    at = _expect(text, 0, "{")
    if text[at : at + 1] == "}":
        return members
    while True:
        key, at = decoder.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError(f"key {key!r} is not a string")
        start = _expect(text, at, ":")
        value, at = decoder.raw_decode(text, start)
        members[key] = (value, text[start:at])
        at = skip_blank(text, at)
        if text[at : at + 1] == "}":
            break
        at = _expect(text, at, ",")
    if text[at + 1 :].strip(" \t\n\r"):
        raise ValueError("text after the object")
    return members


def skip_blank(text: str, at: int) -> int:
    """The place of the first character from `at` on that is no JSON white space."""
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, mark: str) -> int:
    """The place behind `mark` and the white space after it."""
    at = skip_blank(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"no {mark!r} at {at}")
    return skip_blank(text, at + 1)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def json_type(text: str) -> frozenset[str]:
    """The types of a JSON schema that a JSON text is of; none where it is no JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return frozenset()
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = isinstance(value, int) or value.is_integer()
        return frozenset({"number", "integer"} if whole else {"number"})
    names: dict[type, str] = {bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset({names[type(value)]})


def argument_types(tools: Sequence[ToolSpec], name: str) -> dict[str, frozenset[str]]:
    """What the schema of a tool allows its arguments to be; those of which it says nothing are left out."""
    definition = next((tool.definition for tool in tools if tool.name == name), "{}")
    try:
        properties = json.loads(definition)["parameters"]["properties"]
        return {key: types for key, schema in properties.items() if (types := _types(schema))}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _types(schema: object) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    named = schema.get("type")
    types = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    options = [each for key in ("anyOf", "oneOf") for each in schema.get(key) or []]
    return frozenset(each for each in types if isinstance(each, str)).union(*map(_types, options))


class ObjectEnd:
    """Finds where a JSON object that begins at `start` ends, while its text still grows: each character once.

    It gives up where no JSON can go on, so that text full of opening marks is not read again and again.
    """

    def __init__(self, start: int) -> None:
        self.broken = False
        self._at = start
        self._depth = 0
        self._quoted = False
        self._next = ""
        """What the next character that is not white space must be one of; "" where that is open."""
        self._found: int | None = None

    def find(self, text: str) -> int | None:
        """The place behind the closing brace; None while it is not there."""
        while self._found is None and not self.broken:
            if self._next and not self._follows(text):
                break
            found = (_INSIDE if self._quoted else _OUTSIDE).search(text, self._at)
            if found is None:
                self._at = max(self._at, len(text))
                break
            if found.group() == "\\" and found.end() == len(text):
                self._at = found.start()
                break
            self._take(found.group(), found.end())
        return self._found

    def _follows(self, text: str) -> bool:
        at = skip_blank(text, self._at)
        if at < len(text):
            self.broken = text[at] not in self._next
            self._next = ""
        return at < len(text) and not self.broken

    def _take(self, mark: str, place: int) -> None:
        self._at = place
        if mark == "\\":
            self._at += 1
        elif mark == '"':
            self._quoted = not self._quoted
            self._next = "" if self._quoted else ":,}]"
        elif mark == "{":
            self._depth += 1
            self._next = '"}'
        elif mark == "}":
            self._depth -= 1
            self._found = place if self._depth == 0 else None
        else:
            self.broken = True
