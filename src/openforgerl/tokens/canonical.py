"""When a message that came back means what was sampled: JSON spacing, key order and white space at the ends aside.

Numbers are equal if their literals are, else only if JavaScript's printing of the recorded one gives the sent one.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from openforgerl.records import ToolCall


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


Json = str | Number | bool | None | list["Json"] | dict[str, "Json"]


def js_number(literal: str) -> str | None:
    """What JSON.stringify(JSON.parse(literal)) prints; None where that is null (the number is beyond a double)."""
    value = float(literal)
    if value == 0:
        return "0"
    if value in (float("inf"), float("-inf")):
        return None
    sign = "-" if value < 0 else ""
    # repr gives the shortest digits that read back as the same double, as JavaScript does; only the layout differs.
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    return sign + _layout(digits.rstrip("0"), point)


def _layout(digits: str, point: int) -> str:
    """ECMAScript's Number::toString: `point` is the place of the decimal point among the digits."""
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    rest = "." + digits[1:] if len(digits) > 1 else ""
    return f"{digits[0]}{rest}e{point - 1:+d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalCall:
    """A tool call without its id; `key` is equal for calls that may be equal."""

    name: str
    value: Json
    key: Hashable

    def agrees(self, sent: CanonicalCall) -> bool:
        """Whether `sent` means the same; `self` is the recorded one."""
        return self.name == sent.name and _equal(self.value, sent.value)


def canonical_calls(calls: Sequence[ToolCall]) -> tuple[CanonicalCall, ...]:
    return tuple(_canonical(call) for call in calls)


def _canonical(call: ToolCall) -> CanonicalCall:
    try:
        value = _parse(call.arguments)
        return CanonicalCall(name=call.name, value=value, key=(call.name, _key(value)))
    except (ValueError, RecursionError):
        text = call.arguments.strip()
        return CanonicalCall(name=call.name, value=text, key=(call.name, "text", text))


def _parse(arguments: str) -> Json:
    """Raises ValueError. No arguments at all are an empty object."""
    parsed: Json = json.loads(arguments.strip() or "{}", parse_int=Number, parse_float=Number, parse_constant=_refuse)
    return parsed


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _key(value: Json) -> Hashable:
    if isinstance(value, Number):
        printed = js_number(value)
        return None if printed is None else ("number", printed)
    if isinstance(value, dict):
        return ("object", frozenset((name, _key(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("list", tuple(_key(item) for item in value))
    return ("bool", value) if isinstance(value, bool) else value


def _equal(recorded: Json, sent: Json) -> bool:
    if isinstance(recorded, Number):
        if isinstance(sent, Number):
            return str(recorded) == str(sent) or js_number(recorded) == str(sent)
        return sent is None and js_number(recorded) is None
    if isinstance(recorded, dict) and isinstance(sent, dict):
        return recorded.keys() == sent.keys() and all(_equal(item, sent[name]) for name, item in recorded.items())
    if isinstance(recorded, list) and isinstance(sent, list):
        return len(recorded) == len(sent) and all(map(_equal, recorded, sent))
    return type(recorded) is type(sent) and recorded == sent
