"""A full disk fails the calls that it hits, with an error, and nothing else."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openforgerl.errors import StoreError
from openforgerl.records import MessagesDelta, Session
from openforgerl.store import Store
from recorded_calls import recorded, user

HERE = Path(__file__).parent


def test_calls_fail_while_files_cannot_grow_and_succeed_afterwards(tmp_path: Path) -> None:
    path = os.pathsep.join((str(HERE.parents[1] / "src"), str(HERE.parent)))
    command = [sys.executable, str(HERE / "store_filler.py"), str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    store = Store.open(tmp_path, read_only=True)
    assert [call.index for call in store.calls("s1")] == [0, 1, 4]
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], check=False).returncode
    ):
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", place], check=True)


async def test_a_disk_that_is_full_and_then_not_loses_nothing_acknowledged(small_disk: Path) -> None:
    filler = small_disk / "filler"
    store = Store.open(small_disk / "store")
    await store.open_session(Session(session_id="s1"))
    filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 200_000))
    outcomes = []
    for index in range(20):
        new = (user(f"{index} " + "x" * 20_000),)
        call = recorded(index, (1,), messages=MessagesDelta(parent=None, cut=0, new=new))
        outcomes += await asyncio.gather(store.commit(call), return_exceptions=True)
    kept = [index for index, outcome in enumerate(outcomes) if outcome is None]
    assert 0 < len(kept) < 20
    assert all(isinstance(outcome, StoreError) for outcome in outcomes if outcome is not None)
    filler.unlink()
    await store.commit(recorded(20, (1,)))
    assert [call.index for call in store.calls("s1")] == [*kept, 20]
    await store.aclose()
