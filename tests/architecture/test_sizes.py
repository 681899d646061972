"""Small files and functions: what outgrows a cap hides a noun."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES = 400
FUNCTION_LINES = 60
SOURCES = sorted(path for folder in ("src", "examples", "scripts", "bench") for path in (ROOT / folder).rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_files_stay_below_their_cap() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert sizes
    assert {path: lines for path, lines in sizes.items() if lines > FILE_LINES} == {}


def test_functions_stay_below_their_cap() -> None:
    found = [
        (str(path.relative_to(ROOT)), name, lines)
        for path in SOURCES
        for name, lines in functions(ast.parse(path.read_text()))
        if lines > FUNCTION_LINES
    ]
    assert found == []


@pytest.mark.parametrize(("lines", "long"), [(FUNCTION_LINES, False), (FUNCTION_LINES + 1, True)])
def test_the_measure_sees_a_long_function(lines: int, long: bool) -> None:
    source = "async def f():\n" + "    pass\n" * (lines - 1)
    assert [size > FUNCTION_LINES for _, size in functions(ast.parse(source))] == [long]
