"""What JavaScript makes of numbers, and when two calls mean the same."""

from __future__ import annotations

import pytest

from openforgerl.tokens.canonical import canonical_calls, js_number
from token_world import call

# Each right side is what Node prints for JSON.stringify(JSON.parse(left)).
PRINTED = {
    "1.0": "1", "1e3": "1000", "12345678901234567890": "12345678901234567000", "1e20": "100000000000000000000",
    "1e21": "1e+21", "123456789012345680000": "123456789012345680000", "1.5e300": "1.5e+300", "-0": "0", "-0.0": "0",
    "0.000001": "0.000001", "0.0000001": "1e-7", "1.5e-7": "1.5e-7", "0.1": "0.1", "1.10": "1.1", "-1.50": "-1.5",
    "12.0e1": "120", "9007199254740993": "9007199254740992", "5e-324": "5e-324", "0.00001234": "0.00001234",
    "123e-20": "1.23e-18", "1.7976931348623157e308": "1.7976931348623157e+308", "100": "100", "1E2": "100",
}  # fmt: skip


@pytest.mark.parametrize("literal", PRINTED)
def test_a_number_is_printed_as_javascript_prints_it(literal: str) -> None:
    assert js_number(literal) == PRINTED[literal]
    assert js_number(PRINTED[literal]) == PRINTED[literal]


def test_a_number_beyond_a_double_is_printed_as_null() -> None:
    assert js_number("1e400") is None
    assert agree('{"a": -1e400}', '{"a": null}')
    assert not agree('{"a": 1e300}', '{"a": null}')


@pytest.mark.parametrize(
    ("recorded", "sent"),
    [
        ('{"a": 1, "b": [1, {"c": "x"}]}', '{"b":[1,{"c":"x"}],"a":1}'),
        ('{"a": "\\u00e9\\/"}', '{"a":"é/"}'),
        ("{}", ""),
        ('{"a": 1, "a": 2}', '{"a":2}'),
        ('{"a": true, "b": null}', '{"b":null,"a":true}'),
        ('{"a": 1.0}', '{"a":1.0}'),
        ('{"a": 1.0}', '{"a":1}'),
        ("not JSON", " not JSON\n"),
    ],
)
def test_spacing_order_escapes_and_printed_numbers_do_not_matter(recorded: str, sent: str) -> None:
    assert agree(recorded, sent)
    assert key(recorded) == key(sent)


@pytest.mark.parametrize(
    ("recorded", "sent"),
    [
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 12345678901234567890}', '{"a": 12345678901234567891}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": ""}', '{"a": null}'),
        ('{"a": null}', "{}"),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": [1]}', '{"a": [1, 1]}'),
        ('{"a": " x"}', '{"a": "x"}'),
        ('{"a": NaN}', '{"a": null}'),
        ("{", "{}"),
    ],
)
def test_what_changes_meaning_matters(recorded: str, sent: str) -> None:
    assert not agree(recorded, sent)


def test_nesting_beyond_reading_is_compared_as_text() -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    assert agree(deep, deep)


def agree(recorded: str, sent: str) -> bool:
    return canonical_calls((call("a", recorded),))[0].agrees(canonical_calls((call("b", sent),))[0])


def key(arguments: str) -> object:
    return canonical_calls((call("a", arguments),))[0].key
