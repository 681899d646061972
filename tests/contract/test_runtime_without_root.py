"""Root gives sandboxes users of their own; without root the same isolation comes from a user namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import openforgerl

NOBODY = 65_534


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(os.getuid() != 0, reason="the other contract tests run without root already")
def test_an_ordinary_user_has_isolated_sandboxes_too(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(openforgerl.__file__).parents[1])}
    command = [sys.executable, str(Path(__file__).with_name("without_root.py")), str(NOBODY), str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, cwd="/")
    if "cannot make a sandbox here" in done.stderr:
        pytest.skip("this machine allows no user namespaces")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "share your user id" in lines[0]
    assert lines[1:] == [
        str(b"proxy:hello\nsecret\nagent\n"),
        str(b""),
        "deadline True",
        f"{b'42' + bytes([10]) + b'43' + bytes([10])} {b'1' + bytes([10])}",
        str(b"CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n"),
        str(b""),
        "True 0",
    ]
    assert sorted(path.name for path in (folder / "sandboxes").iterdir()) == [".gone", ".lock"]
    assert list((folder / "sandboxes" / ".gone").iterdir()) == []
