"""Typed reading of a request's JSON object; each error names the field, what was expected and what was sent.

null and a missing key are the same everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from openforgerl.dialects.jsontext import Json, Kept, Number, write_json
from openforgerl.errors import DialectError
from openforgerl.records import INT64_MAX

T = TypeVar("T")

_SHOWN = 60
_DIGITS = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of the request; `path` is where it stands, "" for the body."""

    values: dict[str, Json]
    path: str = ""

    @classmethod
    def of(cls, value: Json, path: str) -> Fields:
        if not isinstance(value, dict):
            raise wrong(path or "body", "an object", value)
        return cls(value, path)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> Json:
        return self.values.get(name)

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise wrong(self.at(name), "a string", value)
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong(self.at(name), "true or false", value)
        return bool(value)

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        expected = "a number" + _bounds(low, high)
        if not isinstance(value, Number):
            raise wrong(self.at(name), expected, value)
        number = float(value.literal)
        if not math.isfinite(number) or not low <= number <= high:
            raise wrong(self.at(name), expected, value)
        return number

    def integer(self, name: str, low: int) -> int | None:
        """1024.0 is an integer too: some languages print them so."""
        number, value = self.number(name, low), self.get(name)
        if number is None or not isinstance(value, Number):
            return None
        if not number.is_integer():
            raise wrong(self.at(name), "an integer" + _bounds(low, math.inf), value)
        # A float of it would be rounded above 2**53.
        exact = int(value.literal) if _DIGITS.fullmatch(value.literal) else int(number)
        if not -INT64_MAX - 1 <= exact <= INT64_MAX:
            raise wrong(self.at(name), f"an integer from {low} to {INT64_MAX}", value)
        return exact

    def items(self, name: str) -> list[tuple[str, Json]]:
        """(path, value) of each element; a missing list is empty."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise wrong(self.at(name), "a list", value)
        return [(f"{self.at(name)}[{place}]", item) for place, item in enumerate(value)]

    def objects(self, name: str) -> Iterator[Fields]:
        for path, item in self.items(name):
            yield Fields.of(item, path)

    def each(self, name: str, read: Callable[[Fields], T]) -> list[T]:
        """`read` of each object of a list; of one that stood unchanged in an earlier body, what it gave then.

        `read` is a module's function, depends on the object alone, and what it gives is never changed. The paths of
        its fields are for errors only, which are not kept.
        """
        found: list[T] = []
        items = self.get(name)
        for place, item in enumerate(items if isinstance(items, list) else self.items(name)):
            made = getattr(item, "made", None)
            if made is not None and made[0] is read:
                found.append(made[1])
                continue
            result = read(Fields.of(cast(Json, item), f"{self.at(name)}[{place}]"))
            if isinstance(item, Kept):
                item.made = (read, result)
            found.append(result)
        return found


def wrong(path: str, expected: str, value: Json) -> DialectError:
    return DialectError(f"{path}: expected {expected}, got {shown(value)}", field=path)


def shown(value: Json) -> str:
    """A value as an error message shows it: its kind, and its text cut short."""
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = write_json(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _bounds(low: float, high: float) -> str:
    if math.isfinite(low) and math.isfinite(high):
        return f" from {low:g} to {high:g}"
    return f" of at least {low:g}" if math.isfinite(low) else ""
