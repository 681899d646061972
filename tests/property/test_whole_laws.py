"""Prompts of templates that make messages depend on later ones are the right ones; faults in the source are noticed."""

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
from openforgerl.errors import AssemblyError, ConfigError
from token_world import FIXTURE, template
from whole_laws import LATE, assert_laws

SOURCE = Path(openforgerl.tokens.__file__).parent


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_prompt_is_the_whole_rendering_with_the_recorded_ids_in_it(random: Random) -> None:
    assert_laws(random)


MUTANTS = {
    "nothing changed": ("scripts.py", "", ""),
    "reasoning as sent": ("scripts.py", "Frame(opening=opening, reasoning=reasoning)", "Frame(opening=opening)"),
    "reasoning never kept": ("scripts.py", "reasoning = (self._keep and turn.reasons) or shown", "reasoning = False"),
    "keep ignored": ("scripts.py", "(self._keep and turn.reasons) or shown", "shown"),
    "empty reasoning dropped": ("scripts.py", "0 if reasoning or thought is None else begun", "0"),
    "reasoning twice": ("scripts.py", "0 if reasoning or thought is None else begun", "begun"),
    "any beginning stands": ("scripts.py", "found = self._text.startswith(text)", "found = True"),
    "no beginning passed": ("scripts.py", "self._at = len(text) if found else 0", "self._at = 0"),
    "answers not joined": ("scripts.py", "for count in range(len(run), 1, -1)", "for count in ()"),
    "messages of another role lost": ("scripts.py", "return self._up_to(self._at)", "return self._up_to(self._end)"),
    "turn passed too far": ("scripts.py", "self._at = region.end", "self._at = region.end + 1"),
    "sentinel lost": ("assembly.py", "Marked(text=text, sentinel=sentinel)", "Marked(text=text)"),
    "turn ends at any end": ("pieces.py", "place = stop + len(end)", "place = body"),
    "pieces in any case": ("contract.py", "depends = not merge and not", "depends = False and not"),
}  # fmt: skip


@pytest.fixture
def mutant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The name of a changed copy of the package."""
    file, old, new = MUTANTS[request.param]
    name = "whole_mutant_" + "".join(filter(str.isalpha, request.param))
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
    for seed in range(30):
        try:
            template(modules, FIXTURE, LATE)
            assert_laws(Random(seed), modules)
        except (AssertionError, ValueError, LookupError, TypeError, ConfigError, AssemblyError):
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, indirect=True)
def test_the_laws_tell_a_mutant_from_the_original(mutant: str, request: pytest.FixtureRequest) -> None:
    assert is_told_apart(mutant) is ("nothing changed" not in request.node.name)
