"""Pydantic's findings as one line that a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from openforgerl.cli.config import Config
from openforgerl.cli.fields import below, members, places

_WORDS = {
    "tuple_type": 'should be a list, such as ["a", "b"]',
    "path_type": "should be a path in quotes",
}
"""Where pydantic's own words are those of Python."""
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}


def explain(error: ValidationError) -> str:
    """The first finding; the number of others is said."""
    findings = error.errors(include_url=False, include_context=False)
    more = len(findings) - 1
    return _line(findings[0]) + (f" (and {more} more)" if more else "")


def _line(finding: ErrorDetails) -> str:
    path = [str(part) for part in finding["loc"]]
    if finding["type"] in _UNKNOWN:
        return _unknown(path)
    message = _WORDS.get(finding["type"]) or finding["msg"].removeprefix("Value error, ")
    if finding["type"] == "missing":
        return f"{name(path)} is missing"
    if below(Config, path):
        message = "this is a section, give it keys"
    return f"{name(path)} = {_shown(finding['input'])}: {message[0].lower()}{message[1:]}"


def name(path: Sequence[str]) -> str:
    """[section] key, [section] alone, or [section] key[2] for an item of a list."""
    items = [part for part in path if part.isdigit()]
    keys = [part for part in path if not part.isdigit()]
    if len(keys) == 1:
        return f"[{keys[0]}]"
    return f"[{'.'.join(keys[:-1])}] {keys[-1]}" + "".join(f"[{item}]" for item in items)


def _unknown(path: list[str]) -> str:
    table = below(Config, path[:-1]) or Config
    known = list(members(table))
    close = difflib.get_close_matches(path[-1], known, n=1)
    if close:
        return f"{name(path)} is unknown: did you mean {name([*path[:-1], close[0]])}?"
    elsewhere = [f"[{'.'.join(place)}]" for place in places(Config, path[-1]) if place]
    if elsewhere and len(path) > 1:
        return f"{name(path)} is unknown: it belongs to {' or '.join(elsewhere)}"
    what = "sections" if len(path) == 1 else f"keys of [{'.'.join(path[:-1])}]"
    return f"{name(path)} is unknown: the {what} are {', '.join(known)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
