"""kill -9 at any moment: every acknowledged call is in the store, whole, and nothing is there by half."""

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from store_writer import call_of

from openforgerl.errors import StoreError
from openforgerl.records import Delivered
from openforgerl.store import Store

HERE = Path(__file__).parent


def child(script: str, *arguments: str) -> "subprocess.Popen[str]":
    source = HERE.parents[1] / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(source), str(HERE.parent)))}
    command = [sys.executable, str(HERE / script), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def killed_while_recording(folder: Path, number: int, chance: random.Random) -> Counter[str]:
    """How many calls of each session were acknowledged before the kill."""
    with child("store_writer.py", str(folder), str(number)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        lines = [process.stdout.readline() for _ in range(chance.randrange(60))]
        read_beside(folder, lines)
        try:
            process.wait(timeout=chance.random() * 0.01)
        except subprocess.TimeoutExpired:
            process.kill()
        lines += process.stdout.readlines()
    assert process.returncode == -9
    return Counter(line.split()[0] for line in lines if line.endswith("\n"))


def read_beside(folder: Path, lines: list[str]) -> None:
    """The writer lives in another process, and what it acknowledged is seen; a second writer is refused."""
    reader = Store.open(folder, read_only=True)
    check(reader, Counter(line.split()[0] for line in lines))
    reader.close()
    with pytest.raises(StoreError, match="is open in another process"):
        Store.open(folder)


def check(store: Store, acknowledged: Counter[str]) -> None:
    for session in store.sessions():
        calls = store.calls(session.session_id)
        assert len(calls) >= acknowledged[session.session_id]
        for index, call in enumerate(calls):
            expected = call_of(session.session_id, index)
            assert call.delivered in (expected.delivered, Delivered(state="full"))
            assert call == replace(expected, delivered=call.delivered)
        assert len(store.intents(session.session_id)) <= 1
    assert set(acknowledged) <= {session.session_id for session in store.sessions()}


@pytest.mark.parametrize("seed", [1, 2])
def test_every_acknowledged_call_survives_kill_9(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: Counter[str] = Counter()
    for number in range(4):
        acknowledged += killed_while_recording(tmp_path, number, chance)
        reader = Store.open(tmp_path, read_only=True)
        check(reader, acknowledged)
        reader.close()
    assert sum(acknowledged.values()) > 20
    store = Store.open(tmp_path, create=False)
    check(store, acknowledged)
    store.close()
