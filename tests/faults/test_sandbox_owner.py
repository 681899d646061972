"""What becomes of sandboxes when their owner is killed or their tear-down is stuck."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import openforgerl
from openforgerl.errors import ConfigError, SandboxError
from openforgerl.runtimes.base import RuntimeLimits
from openforgerl.runtimes.process import ProcessRuntime, ProcessRuntimeConfig
from openforgerl.runtimes.process_cgroup import MemoryGroup, probe_name
from openforgerl.runtimes.process_folder import SandboxFolder, remove_tree
from openforgerl.runtimes.process_sweep import MARK
from openforgerl.runtimes.process_tree import readable, run_tool
from sandboxes import RUN_ID, Machine, run, said, spec

OWNER = Path(__file__).with_name("sandbox_owner.py")


async def killed_owner(machine: Machine, kind: str) -> None:
    """Start an owner, kill it by SIGKILL while its sandbox runs daemons, and wait until all of them are dead."""
    env = {**os.environ, "PYTHONPATH": str(Path(openforgerl.__file__).parents[1])}
    argv = [sys.executable, str(OWNER), str(machine.root), str(machine.first_uid), kind, RUN_ID]
    owner = await asyncio.create_subprocess_exec(*argv, env=env, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"begun\n"
        trees = [os.pidfd_open(pid) for pid in machine.processes()]
    finally:
        owner.kill()
    async with asyncio.timeout(2):
        for tree in trees:
            await readable(tree)
            os.close(tree)
    assert len(trees) >= 4
    await owner.wait()


@pytest.mark.parametrize("kind", ["isolated", "plain"])
async def test_no_process_outlives_a_killed_owner_and_a_sweep_removes_the_rest(kind: str, tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    await killed_owner(machine, kind)
    assert machine.processes() == []
    assert (machine.root / RUN_ID / "session-1" / "workspace" / "file").exists()
    assert await machine.runtime.sweep("another-run") == 0
    assert await machine.runtime.sweep(RUN_ID) >= 1
    assert machine.leftovers() == []
    assert await machine.runtime.sweep(RUN_ID) == 0


async def test_a_sweep_removes_the_probe_of_a_killed_maker_and_spares_a_living_ones(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    dead = await asyncio.create_subprocess_exec("true")
    await dead.wait()
    living = probe_name()
    lost = living.replace(f".{os.getpid()}.", f".{dead.pid}.")
    groups = [MemoryGroup.make(name, 1 << 30) for name in (living, lost)]
    if None in groups:
        pytest.skip("no cgroup can be made here")
    ours, theirs = [group.procs.parent for group in groups if group]
    try:
        assert await machine.runtime.sweep(RUN_ID) >= 1
        assert not theirs.exists()
        assert ours.exists()
    finally:
        ours.rmdir()


async def test_a_session_can_begin_anew_where_a_killed_owner_left_it(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    await killed_owner(machine, "isolated")
    async with machine.runtime.sandbox(spec()) as box:
        assert await said(box, "ls -A") == ""
    assert machine.leftovers() == []


async def test_a_sweep_kills_what_carries_the_mark_of_a_dead_sandbox_and_nothing_else(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    (machine.root / RUN_ID / "session-1").mkdir(parents=True)
    marks = {name: f"{RUN_ID}/{name}" for name in ("session-1", "session-10")}
    lost, other = [
        await asyncio.create_subprocess_exec("sleep", "60", env={**os.environ, MARK: mark}) for mark in marks.values()
    ]
    try:
        assert await machine.runtime.sweep(RUN_ID) == 2
        assert await lost.wait() == -signal.SIGKILL
        assert other.returncode is None
    finally:
        other.kill()
        await other.wait()
    assert machine.leftovers() == []


async def test_a_sweep_removes_what_a_broken_removal_left(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    for name in (f"{RUN_ID}.session-9.ab", f"{RUN_ID}0.session-9.ab"):
        (machine.root / ".gone" / name / "deep").mkdir(parents=True)
    assert await machine.runtime.sweep(RUN_ID) == 1
    assert [path.name for path in (machine.root / ".gone").iterdir()] == [f"{RUN_ID}0.session-9.ab"]


async def test_a_stuck_tool_is_killed_at_its_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(SandboxError, match="sleep took longer than"):
        await run_tool("sleep", "60", deadline_s=0.1)
    assert time.monotonic() - started < 5


async def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"cp failed: .*No such file"):
        await run_tool("cp", str(tmp_path / "missing"), str(tmp_path / "there"), deadline_s=5)
    with pytest.raises(SandboxError, match="cannot run no-such-tool"):
        await run_tool("no-such-tool", deadline_s=5)


async def test_a_tree_below_locked_folders_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tree" / "locked" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "locked").chmod(0)
    await remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


async def test_a_sandbox_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    source = tmp_path / "tool"
    source.mkdir()
    async with machine.runtime.sandbox(spec()) as box:
        with pytest.raises(SandboxError, match=r"did not start: bwrap: .*/usr/none"):
            await run(box, "true", mounts={"/usr/none": source})
        assert await said(box, "echo still usable") == "still usable"
    assert machine.leftovers() == []


def test_without_bubblewrap_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^bubblewrap is not .*bubblewrap or set \[runtime\] unsafe = true$"):
        ProcessRuntime(ProcessRuntimeConfig(root=tmp_path / "root"))
    assert ProcessRuntime(ProcessRuntimeConfig(root=tmp_path / "root", unsafe=True)).isolation.startswith("unsafe")


def test_a_machine_that_allows_no_sandbox_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigError, match=r"cannot make a sandbox here \(bwrap: No permissions.*unsafe = true$"):
        ProcessRuntime(ProcessRuntimeConfig(root=tmp_path / "root"))


def test_a_root_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=r"\[runtime\] root = .* mode 0700"):
        ProcessRuntime(ProcessRuntimeConfig(root=tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"\[runtime\] root = .* cannot be used"):
        ProcessRuntime(ProcessRuntimeConfig(root=tmp_path / "file" / "below"))


def test_an_owner_that_lives_keeps_its_claim_from_every_other_process(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    folder = SandboxFolder(machine.root, RUN_ID, "session-1")
    code = (
        "import asyncio, pathlib, sys; from openforgerl.runtimes.process_sweep import sweep; "
        "print(asyncio.run(sweep(pathlib.Path(sys.argv[1]), sys.argv[2])))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(openforgerl.__file__).parents[1])}
    command = [sys.executable, "-c", code, str(machine.root), RUN_ID]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "0\n"
    asyncio.run(folder.remove())
    assert machine.leftovers() == []


def test_limits_are_config(tmp_path: Path) -> None:
    config = ProcessRuntimeConfig.model_validate({"limits": {"processes": 8}, "root": str(tmp_path)})
    assert config.limits == RuntimeLimits(processes=8)
