"""Programs without isolation, for machines without bubblewrap: `unsafe`. Their whole tree is still owned and killed.

There is no /workspace here, so the sandbox's paths are replaced by real ones in argv, environment, the plan's files and
in copies of the grader's mounts.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from openforgerl.errors import SandboxError
from openforgerl.records import LaunchPlan
from openforgerl.runtimes import process_supervisor
from openforgerl.runtimes.base import WORKSPACE, RuntimeLimits, SandboxSpec
from openforgerl.runtimes.process_bwrap import DEFAULT_PATH
from openforgerl.runtimes.process_folder import SandboxFolder, remove_tree
from openforgerl.runtimes.process_net import Forwarder
from openforgerl.runtimes.process_sweep import MARK, kill_marked
from openforgerl.runtimes.process_tree import ProcessTree, TreeStart

_TRANSLATED_CAP = 1_000_000
ISOLATION = "unsafe: plain processes of yours without isolation; their whole tree is killed at the end"


class Translation:
    """Sandbox paths to real ones, in any text."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = {place.encode(): str(real).encode() for place, real in places.items()}
        names = b"|".join(re.escape(place) for place in sorted(self._places, key=len, reverse=True))
        self._pattern = re.compile(rb"(?<![\w./~-])(?:" + names + rb")(?![\w-]|\.\w)")

    def content(self, data: bytes) -> bytes:
        return self._pattern.sub(lambda match: self._places[match[0]], data)

    def text(self, value: str) -> str:
        return self.content(value.encode(errors="surrogateescape")).decode(errors="surrogateescape")


class PlainPrograms:
    """Starts the programs of one sandbox as plain processes, one after the other."""

    def __init__(self, folder: SandboxFolder, spec: SandboxSpec, limits: RuntimeLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._mark = f"{spec.run_id}/{spec.session_id}"
        address = spec.proxy_address
        self.proxy_url = f"http://{address[0]}:{address[1]}" if address else ""

    async def _places(self, plan: LaunchPlan, user: str) -> dict[str, Path]:
        """Fresh folders for HOME and /tmp, and the grader's own ones; their places in the sandbox."""
        base = self._folder.path
        places = {WORKSPACE: self._folder.workspace, f"/home/{user}": base / "home", "/tmp": base / "tmp"}
        for folder in (base / "home", base / "tmp", base / "mounts"):
            await remove_tree(folder)
            folder.mkdir(mode=0o700)
        if user == "grader":
            await self._folder.open_up()
            places["/logs/verifier"] = await self._folder.fresh_verifier_logs()
        for number, place in enumerate(plan.mounts):
            places[place] = base / "mounts" / str(number) if user == "grader" else plan.mounts[place]
        return places

    async def start(self, plan: LaunchPlan, user: Literal["agent", "grader"]) -> ProcessTree:
        places = await self._places(plan, user)
        translation = Translation(places)
        if user == "grader":
            for place, source in plan.mounts.items():
                _copy(source, places[place], translation)
        for place, content in plan.files.items():
            _write(place, translation.content(content), places)
        env = {"PATH": DEFAULT_PATH, "HOME": f"/home/{user}", "TMPDIR": "/tmp", **plan.env}
        return ProcessTree(
            TreeStart(
                argv=[sys.executable, "-I", "-S", process_supervisor.__file__, str(self._limits.file_bytes),
                      *map(translation.text, plan.argv)],
                env={name: translation.text(value) for name, value in env.items()} | {MARK: self._mark},
                pass_fds=(), info=None, output_cap=plan.output_cap_bytes, cwd=str(self._folder.workspace),
            )
        )  # fmt: skip

    async def connect(self, tree: ProcessTree) -> Forwarder | None:
        """Nothing to open: the proxy is reached at its real address."""
        return None

    def out_of_memory_kills(self) -> int:
        return 0

    async def settle(self) -> None:
        """Kill what outlived its supervisor."""
        await kill_marked(self._mark)

    async def close(self) -> None:
        await self.settle()


def _copy(source: Path, target: Path, translation: Translation) -> None:
    try:
        shutil.copytree(source, target, symlinks=True)
        for path in target.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _TRANSLATED_CAP:
                data = path.read_bytes()
                if b"\0" not in data:
                    path.write_bytes(translation.content(data))
    except OSError as error:
        raise SandboxError(f"cannot copy the mount {source}: {error}") from error


def _write(place: str, content: bytes, places: Mapping[str, Path]) -> None:
    for inside, real in places.items():
        if PurePosixPath(place).is_relative_to(inside):
            path = real / PurePosixPath(place).relative_to(inside)
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.touch(mode=0o600)
                path.write_bytes(content)
            except OSError as error:
                raise SandboxError(f"cannot write the plan's file {place}: {error}") from error
            return
    raise SandboxError(f"cannot write the plan's file {place} without isolation: it is outside of {', '.join(places)}")
