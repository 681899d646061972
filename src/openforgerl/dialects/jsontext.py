"""JSON that keeps what the sender wrote: key order and number literals survive reading and writing.

A tool definition becomes prompt text, so 1.0 must not turn into 1 on its way there.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from openforgerl.errors import DialectError


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was spelled."""

    literal: str


Json: TypeAlias = "dict[str, Json] | list[Json] | str | Number | bool | None"

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class Kept(dict[str, Json]):
    """An object of a list of the body. Where a later body holds it unchanged, it is the same object."""

    __slots__ = ("made",)
    made: tuple[object, object]
    """Who made something of it, and what: see `Fields.each`."""


def _refuse_constant(literal: str) -> NoReturn:
    raise DialectError(f"the body is not JSON: {literal} is not a JSON number")


DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_refuse_constant)


def read_json(body: bytes) -> Json:
    """Raises DialectError, which says where the body stops being JSON in UTF-8, and RecursionError."""
    try:
        text = body.decode()
        value: Json = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise DialectError(f"the body is not UTF-8 at byte {error.start}; send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise DialectError(f"the body is not JSON: {error.msg} at {place}; send one JSON object") from None
    return whole_characters(value) if broken_characters(text) else value


def write_json(value: Json) -> str:
    """As `json.dumps(value, ensure_ascii=False)` prints it, numbers as they were spelled."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {write_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(write_json(item) for item in value) + "]"
    if isinstance(value, Number):
        return value.literal
    return json.dumps(value, ensure_ascii=False)


def broken_characters(text: str) -> bool:
    """Whether JSON text may hold half of a surrogate pair."""
    return _SURROGATE_ESCAPE.search(text) is not None


def whole_characters(value: Json) -> Json:
    """Half of a surrogate pair (JavaScript cuts strings there) becomes U+FFFD: it has no UTF-8."""
    if isinstance(value, dict):
        return {_whole(key): whole_characters(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    return _whole(value) if isinstance(value, str) else value


def _whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
