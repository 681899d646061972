"""Each family's answers are read as they were written, however they are cut; faults in the source are noticed."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import openforgerl.tokens
from family_laws import MARKS, assert_laws
from openforgerl.errors import ConfigError

SOURCE = Path(openforgerl.tokens.__file__).parent


@pytest.mark.parametrize("family", MARKS)
@settings(max_examples=50, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_an_answer_is_read_as_written_however_it_is_cut(family: str, random: Random) -> None:
    assert_laws(random, family)


MUTANTS = {
    "nothing changed": ("markup.py", "", ""),
    "separator shown": ("markup.py", ".removesuffix(self._family.separator)", ""),
    "nothing held back": ("markup.py", "count -= held(self._buffer, self._marks)", "pass"),
    "text between calls": ("markup.py", "if self._after_call and not before.strip() else", "if False else"),
    "blank at the end lost": ("markup.py", 'return self._take(SpanKind.TEXT, count, "")', "return None"),
    "broken call lost": ("markup.py", "self._take_text(self._otherwise)", 'self._take(SpanKind.TEXT, 1, "")'),
    "no bare call": ("markup.py", "bool(family.bare) and tools is not None", "False"),
    "one bare call": ("markup.py", "True, bool(self._family.bare)", "True, False"),
    "any object held": ("markup.py", "return -1 if self._final or not any", "return -1 if not any"),
    "parameters needed": ("call_readers.py", "(found := _END", "self._values and (found := _END"),
    "any closing ends a value": ("call_readers.py", 'if behind in ("<parameter=", "</function>"):', "if True:"),
    "line breaks of values": ("call_readers.py", '.removeprefix("\\n").removesuffix("\\n")', ".strip()"),
    "types ignored": ("call_readers.py", "json_type(written) & types", "False"),
    "strings read": ("call_readers.py", 'if types and ("string" not in types', 'if (types or {"null"}) and (True'),
    "end of a call not awaited": ("call_readers.py", '"more" if self._closing.starts', '"no call" if str.starts'),
    "one name of parameters": ("families.py", 'keys=("parameters", "arguments")', 'keys=("arguments",)'),
    "spans one short": ("parsing.py", "self._decoder.ids_until(part.stop)", "self._decoder.ids_before(part.stop)"),
}  # fmt: skip


@pytest.fixture
def mutant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The name of a changed copy of the package."""
    file, old, new = MUTANTS[request.param]
    name = "family_mutant_" + "".join(filter(str.isalpha, request.param))
    shutil.copytree(SOURCE, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / name).glob("*.py"):
        text = path.read_text()
        if path.name == file and old:
            assert text.count(old) == 1, f"{old!r} is not once in {file}"
            text = text.replace(old, new)
        path.write_text(text.replace("openforgerl.tokens", name))
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    try:
        yield name
    finally:
        sys.path.remove(str(tmp_path))
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[loaded]


def is_told_apart(modules: str) -> bool:
    for seed in range(60):
        for family in MARKS:
            try:
                assert_laws(Random(seed), family, modules)
            except (AssertionError, ValueError, LookupError, TypeError, ConfigError):
                return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, indirect=True)
def test_the_laws_tell_a_mutant_from_the_original(mutant: str, request: pytest.FixtureRequest) -> None:
    assert is_told_apart(mutant) is ("nothing changed" not in request.node.name)
