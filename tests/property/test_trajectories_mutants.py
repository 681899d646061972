"""Faults planted in the source of `trajectories`: the laws must tell each mutant from the original."""

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from trajectory_laws import assert_laws, assert_side_calls_are_masked, assert_unrelated_calls_do_not_meet

import openforgerl.trajectories
from random_sessions import random_session

SOURCE = Path(openforgerl.trajectories.__file__).parent

MUTANTS = {
    "nothing changed": ("rows.py", "", ""),
    "owned by every row": ("rows.py", "place >= owned_from", "True"),
    "owned by the last leaf": ("rows.py", "branch_at.pop(parent, None)", "branch_at.get(parent)"),
    "a row for each call": ("rows.py", "branch_at.pop(parent, None)", "branch_at.get(None)"),
    "one to the right": ("rows.py", "// ID_BYTES\n", "// ID_BYTES + 1\n"),
    "one to the left": ("rows.py", "// ID_BYTES\n", "// ID_BYTES - 1\n"),
    "last token dropped": ("rows.py", "+ len(call.sampled_ids)", "+ len(call.sampled_ids) - 1"),
    "log-probs of the leaf": ("rows.py", "] = call.logprobs", "] = leaf.logprobs"),
    "one version a call": ("rows.py", "[run.policy_version for run", "[call.versions[0].policy_version for run"),
    "aborted answers trained": ("rows.py", "_UNFINISHED.get(call.completion)", "None"),
    "side calls trained": ("rows.py", "return MaskReason.SIDE_CALL", "return None"),
    "forced calls trained": ("rows.py", "changed = forced or", "changed ="),
    "top-p trained": ("rows.py", "or call.sampling_used.changes_distribution()", ""),
    "greedy answers trained": ("rows.py", "or temperature(call) <= 0.0", ""),
    "temperatures mixed": ("rows.py", "if alike else", "if True else"),
    "temperature of the leaf": ("rows.py", "return next(chain(trained, unchanged), owned[0])", "return owned[-1]"),
    "temperature of the first": ("rows.py", "chain(trained, unchanged)", "iter(owned)"),
    "temperature of a greedy answer": ("rows.py", "chain(trained, unchanged)", "trained"),
    "empty calls get rows": ("rows.py", "for call in ordered if call.sampled_ids", "for call in ordered"),
    "empty calls are parents": ("prompts.py", "if call.sampled_ids:", "if True:"),
    "the shortest parent": ("prompts.py", "in self._keys[bisect_right(", "in reversed(self._keys)[bisect_right("),
    "the last of equals": ("prompts.py", "(-len(whole), call.index)", "(-len(whole), -call.index)"),
    "the call before is the parent": ("prompts.py", "if prompt.startswith(whole):", "if True:"),
    "a prompt is a parent": ("prompts.py", "earlier.add(prompt + to_bytes(call.sampled_ids)", "earlier.add(prompt"),
    "a cut answer is a parent": ("prompts.py", "prompt.startswith(whole)", "prompt.startswith(whole[:-ID_BYTES])"),
    "cut of the prompt only": ("prompts.py", "prompts[call.call_id] + to_bytes(call.sampled_ids)", "kept"),
    "cut one too long": ("prompts.py", "kept = before[: delta.cut * ID_BYTES]", "kept = before[: delta.cut * 4 + 4]"),
    "cut one too short": ("prompts.py", "= kept + to_bytes", "= kept[ID_BYTES:] + to_bytes"),
    "calls as they come": ("prompts.py", "sorted(calls, key=lambda call: call.index)", "list(calls)"),
    "main calls are side": ("kinds.py", "if not call.tools and held is None", "if held is None"),
    "no call is side": ("kinds.py", "return CallKind.SIDE", "return CallKind.MAIN"),
}  # fmt: skip


@pytest.fixture
def mutant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModuleType]:
    file, old, new = MUTANTS[request.param]
    name = "mutant_" + "".join(filter(str.isalpha, request.param))
    (tmp_path / name).mkdir()
    for path in SOURCE.glob("*.py"):
        text = path.read_text()
        assert path.name != file or old in text, f"{old!r} is not in {file}"
        text = text.replace(old, new) if path.name == file and old else text
        (tmp_path / name / path.name).write_text(text.replace("openforgerl.trajectories", name))
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(tmp_path))
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[loaded]


def is_told_apart(trajectories: ModuleType) -> bool:
    for seed in range(400):
        chance = random.Random(seed)
        try:
            assert_laws(trajectories, random_session(chance), chance)
            assert_unrelated_calls_do_not_meet(trajectories, chance)
            assert_side_calls_are_masked(trajectories, chance)
        except (AssertionError, ValueError, LookupError, TypeError):
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, indirect=True)
def test_the_laws_tell_a_mutant_from_the_original(mutant: ModuleType, request: pytest.FixtureRequest) -> None:
    assert is_told_apart(mutant) is ("nothing changed" not in request.node.name)
