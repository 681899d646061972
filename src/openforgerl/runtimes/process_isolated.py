"""A sandbox's programs in bubblewrap: prepares the workspace, starts the world, opens the way to the proxy."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Literal

from openforgerl.errors import ConfigError, SandboxError
from openforgerl.records import LaunchPlan
from openforgerl.runtimes.base import WORKSPACE, RuntimeLimits, SandboxSpec
from openforgerl.runtimes.process_bwrap import SandboxUser, World, beneath, invocation
from openforgerl.runtimes.process_cgroup import MemoryGroup, group_name, probe_name
from openforgerl.runtimes.process_folder import SandboxFolder, UserSlot
from openforgerl.runtimes.process_net import PORT, Forwarder, listen_as_root, listen_as_user
from openforgerl.runtimes.process_seccomp import filter_program
from openforgerl.runtimes.process_tree import ProcessTree, TreeStart

_ADVICE = "or set [runtime] unsafe = true"


def _users(slot: UserSlot | None) -> dict[str, SandboxUser]:
    if slot is not None:
        pairs = (("agent", slot.agent), ("grader", slot.grader))
        return {name: SandboxUser(name=name, uid=uid, gid=uid, switch=True) for name, uid in pairs}
    uid, gid = os.getuid(), os.getgid()
    return {name: SandboxUser(name=name, uid=uid, gid=gid, switch=False) for name in ("agent", "grader")}


class IsolatedPrograms:
    """Starts the programs of one sandbox, one after the other."""

    def __init__(
        self, bwrap: str, mark: dict[str, str], folder: SandboxFolder, spec: SandboxSpec, limits: RuntimeLimits,
        first_uid: int, root: Path,
    ) -> None:  # fmt: skip
        self._bwrap = bwrap
        self._mark = mark
        self._folder = folder
        self._limits = limits
        self._target = spec.proxy_address
        self.proxy_url = f"http://127.0.0.1:{PORT}" if spec.proxy_address else ""
        self._group = MemoryGroup.make(group_name(root, spec.run_id, spec.session_id), limits.memory_bytes)
        self._slot = UserSlot(root, first_uid) if os.getuid() == 0 else None
        self._users = _users(self._slot)

    async def prepare(self, plan: LaunchPlan, user: Literal["agent", "grader"]) -> dict[str, Path]:
        """Hand the workspace to the one who runs; the folders that it may write, by their place in the sandbox."""
        who = self._users[user]
        if who.switch:
            _check_readable(plan)
        writable = {WORKSPACE: self._folder.workspace}
        if user == "grader":
            await self._folder.open_up()
            writable["/logs/verifier"] = await self._folder.fresh_verifier_logs()
        if who.switch:
            await self._folder.give_to(who.uid)
            for folder in writable.values():
                os.chown(folder, who.uid, who.gid)
        for place, content in plan.files.items():
            if beneath(place, WORKSPACE):
                self._folder.write(place, content, who.uid)
        return writable

    async def start(self, plan: LaunchPlan, user: Literal["agent", "grader"]) -> ProcessTree:
        writable = await self.prepare(plan, user)
        world = World(
            user=self._users[user], limits=self._limits, writable=writable, plan=plan, seccomp=filter_program()
        )
        made = invocation(self._bwrap, world, join=self._group.procs if self._group else None)
        return ProcessTree(
            TreeStart(
                argv=made.argv, env=self._mark, pass_fds=made.descriptors, info=made.info,
                output_cap=plan.output_cap_bytes,
            )
        )  # fmt: skip

    async def connect(self, tree: ProcessTree) -> Forwarder | None:
        """Open the way to the proxy from the network namespace of a tree that is ready and not released."""
        if self._target is None:
            return None
        try:
            if self._slot is not None:
                listener = listen_as_root(tree.init_pid)
            else:
                listener = await asyncio.to_thread(listen_as_user, tree.init_pid)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(f"cannot open the sandbox's way to the proxy: {error}") from error
        forwarder = Forwarder(listener, self._target)
        await forwarder.start()
        return forwarder

    def out_of_memory_kills(self) -> int:
        return self._group.kills() if self._group else 0

    async def settle(self) -> None:
        """Nothing leaves a PID namespace."""

    async def close(self) -> None:
        if self._slot is not None:
            self._slot.release()
        if self._group is not None:
            await self._group.remove()


def _check_readable(plan: LaunchPlan) -> None:
    for place, source in plan.mounts.items():
        needed = 0o005 if source.is_dir() else 0o004
        if source.stat().st_mode & needed != needed:
            raise SandboxError(f"mount {place}: sandbox users cannot read {source}: chmod -R o+rX {source}")


def find_bwrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise ConfigError(f"bubblewrap is not installed: install the Debian package bubblewrap {_ADVICE}")
    return path


def probe(bwrap: str, root: Path, limits: RuntimeLimits, first_uid: int) -> str:
    """Run `true` as an agent would run; one line about the isolation. Raises ConfigError where it cannot be had."""
    uid = first_uid if os.getuid() == 0 else os.getuid()
    user = SandboxUser(name="agent", uid=uid, gid=uid if os.getuid() == 0 else os.getgid(), switch=os.getuid() == 0)
    world = World(user=user, limits=limits, writable={WORKSPACE: root}, plan=LaunchPlan(argv=("/usr/bin/true",)),
                  seccomp=filter_program())  # fmt: skip
    made = invocation(bwrap, world)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"go\n")
        try:
            end = subprocess.run(
                made.argv,
                pass_fds=made.descriptors,
                stdin=theirs.fileno(),
                capture_output=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"bubblewrap does not run here ({error}): repair it {_ADVICE}") from error
        finally:
            for descriptor in (*made.descriptors, made.info):
                os.close(descriptor)
    if end.returncode:
        why = end.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {end.returncode}"]
        raise ConfigError(f"bubblewrap cannot make a sandbox here ({why[0]}): allow user namespaces {_ADVICE}")
    users = "agent and grader are users of their own" if user.switch else "agent and grader share your user id"
    calls = "filtered system calls" if filter_program() else "system calls are not filtered on this machine"
    return (
        "bubblewrap: own PID, IPC, mount, UTS and network namespaces, no capabilities; "
        f"{users}; {calls}; {_memory(limits)}"
    )


def _memory(limits: RuntimeLimits) -> str:
    group = MemoryGroup.make(probe_name(), limits.memory_bytes)
    if group is None:
        return "memory is not limited (no cgroup can be made here)"
    group.discard()
    return f"memory limit {limits.memory_bytes >> 20} MiB"
