"""Faults planted in the source of `tokens`: the laws of assembly must tell each mutant from the original."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import openforgerl.tokens
from assembly_laws import assert_laws
from token_world import template

SOURCE = Path(openforgerl.tokens.__file__).parent

MUTANTS = {
    "nothing changed": ("assembly.py", "", ""),
    "separator dropped": ("assembly.py", "closing[1:] if closed", "closing[:0] if closed"),
    "closing twice": ("assembly.py", "closing[1:] if closed else closing", "closing"),
    "closing skipped": ("assembly.py", "closing[1:] if closed else closing", "closing[1:]"),
    "any end id closes": ("assembly.py", "spelling.ended and spelling.ids[-1] == closing[0]", "spelling.ended"),
    "the last candidate": ("assembly.py", "min(turns, key", "max(turns, key"),
    "the first found": ("assembly.py", "min(turns, key=partial(self._rank, self._here()))", "turns[0]"),
    "the latest of equals": ("assembly.py", 'state == "prefix"), call.index', 'state == "prefix"), -call.index'),
    "shared ids ignored": ("assembly.py", "return -units,", "return 0,"),
    "turns used twice": ("assembly.py", "self._used.add(turn)", "pass"),
    "turns of one message only": ("scripts.py", "range(min(len(run), ITEMS_MOST), 0, -1)", "range(1, 0, -1)"),
    "the shortest run first": ("assembly.py", "enumerate(items)", "reversed(list(enumerate(items)))"),
    "cuts not recognised": ("assembly.py", "(self._recognition.begun, self._recognition.beginning),", ""),
    "edits counted as foreign": ("assembly.py", '"reencoded_turns" if ours', '"foreign_turns" if ours'),
    "position ignored": ("assembly.py", " or self._here().is_a_prompt()", ""),
    "tools forgotten": ("assembly.py", "key = (unit, first, tools if first else ())", "key = (unit, first, ())"),
    "ids only": ("recognition.py", "self._by_content.get(sent.key, []) if owners is None", "[] if owners is None"),
    "text only": ("recognition.py", "if turn not in taken and _agrees(turn, sent)", "if turn not in taken"),
    "ids not compared": ("recognition.py", "return list(owners) or None", "return None"),
    "damaged ids unknown": ("recognition.py", '"".join(filter(str.isalnum, call_id))', "call_id"),
    "white space matters": ("recognition.py", "return (message.text.strip()", "return (message.text"),
    "reasoning needed": ("recognition.py", 'strip() in ("", answer', "strip() in (answer.reasoning, answer"),
    "reasoning always kept": ("recognition.py", "return self._keep or", "return True or"),
    "reasoning never kept": ("recognition.py", "self._keep or shown or", "self._keep or"),
    "keep ignored": ("recognition.py", "return self._keep or shown", "return shown"),
    "full turns may be cut": ("recognition.py", ' and turn.call.delivered.state != "full"', ""),
    "delivery not learnt": ("recognition.py", 'delivered.state != "full"', 'delivered.state == "prefix"'),
    "numbers by value": ("canonical.py", "js_number(recorded) == str(sent)", "False"),
    "spacing matters": ("canonical.py", "value = _parse(call.arguments)", "raise ValueError"),
    "cut ignored": ("turns.py", "decoder.ids_before(stop)", "decoder.ids_before(10**9)"),
    "cut a token later": ("turns.py", "decoder.ids_before(stop)", "decoder.ids_until(stop)"),
    "rest of a token lost": ("turns.py", "[text[start:first_char], text[last_char:stop]]", '["", ""]'),
    "split tokens not counted": ("turns.py", "sum(map(bool, pieces))", "0"),
    "end id lost": ("turns.py", "as_ids([*body.ids, *rest])", "body.ids"),
    "text instead of ids": ("turns.py", "as_ids(self.call.sampled_ids)", "as_ids(self._codec.encode(self._seen))"),
    "any parent": ("prefixes.py", "return (self._last.owner[1], self.depth) if self.depth", "return (None, 0) if True"),
    "the latest parent": ("prefixes.py", "edge.owner = min(edge.owner, owner)", "edge.owner = max(edge.owner, owner)"),
    "later answers ignored": ("checkpoints.py", "content_of(turn) in watch.contents", "False"),
    "later cuts ignored": ("checkpoints.py", '(watch.cuts and call.delivered.state != "full")', "False"),
    "later candidates not counted": ("checkpoints.py", 'counters["ambiguous_turns"] += single[content]', "pass"),
    "any tools": ("checkpoints.py", " and each.tools == tools", ""),
    "any choice is for good": ("assembly.py", "self._rank(self._here(), turn)[:3] != best", "False"),
    "used turns forgotten": ("assembly.py", "set(begun.used), set(begun.named)", "set(), set(begun.named)"),
    "ends forgotten": ("assembly.py", "len(begun.messages), list(begun.ends)", "len(begun.messages), []"),
    "counts forgotten": ("assembly.py", "begun.watch.copy(), Counter(begun.counters)", "begun.watch.copy(), Counter()"),
    "watch forgotten": ("assembly.py", "begun.watch.copy(), Counter(", "Watch(), Counter("),
    "cut one too long": ("prefixes.py", "(self._last.owner[1], self.depth)", "(self._last.owner[1], self.depth + 1)"),
}  # fmt: skip


@pytest.fixture
def mutant(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The name of a changed copy of the package."""
    file, old, new = MUTANTS[request.param]
    name = "mutant_" + "".join(filter(str.isalpha, request.param))
    shutil.copytree(SOURCE, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tmp_path / name).glob("*.py"):
        text = path.read_text()
        if path.name == file and old:
            assert text.count(old) >= 1, f"{old!r} is not in {file}"
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
    template(modules)
    for seed in range(40):
        try:
            assert_laws(Random(seed), modules)
        except (AssertionError, ValueError, LookupError, TypeError):
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, indirect=True)
def test_the_laws_tell_a_mutant_from_the_original(mutant: str, request: pytest.FixtureRequest) -> None:
    assert is_told_apart(mutant) is ("nothing changed" not in request.node.name)
