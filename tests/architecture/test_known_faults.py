"""docs/faults.md: no fault without its line, no line without an answer, no answer that is not there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAMILIES = {"A": 27, "B": 21, "C": 11}
LINE = re.compile(r"\| ([A-Z]\d\d) \| ([^|]+) \| ([^|]+) \|")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def lines() -> list[tuple[str, str, str]]:
    table = (ROOT / "docs/faults.md").read_text().splitlines()
    return [found.group(1, 2, 3) for line in table if (found := LINE.fullmatch(line))]


def test_every_fault_has_one_line_in_order() -> None:
    expected = [f"{family}{number:02}" for family, count in FAMILIES.items() for number in range(1, count + 1)]
    assert [ident for ident, _, _ in lines()] == expected


def test_every_line_names_a_test_or_says_why_there_is_none() -> None:
    for ident, _, answer in lines():
        said = TEST.sub("", answer).replace("<br>", "").strip()
        assert TEST.search(answer) or said, ident


def test_every_named_test_exists() -> None:
    named = [(ident, *found.group(1, 2)) for ident, _, answer in lines() for found in TEST.finditer(answer)]
    assert len(named) >= 100
    assert [each for each in named if each[2] not in names_in(each[1])] == []


def names_in(path: str) -> set[str]:
    file = ROOT / path
    body = ast.parse(file.read_text()).body if file.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
