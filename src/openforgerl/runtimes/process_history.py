"""A workspace's git repositories hold one commit, the present one: later commits and notes of a task are its answer.

Branches, tags, remotes, reflogs and unreachable objects are where agents have found solutions (SWE-bench#465).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from openforgerl.errors import SandboxError
from openforgerl.runtimes.process_tree import run_tool

_NOBODY = ("-c", "user.name=task", "-c", "user.email=task@localhost")
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*", "-c", "gc.auto=0")
_KEPT = {"HEAD", "config", "description", "hooks", "index", "info", "objects", "modules"}


async def forget_other_commits(workspace: Path, *, deadline_s: float) -> None:
    """In every repository below: the files of HEAD as the only commit. Index and files stay. Raises SandboxError."""
    search = ("find", str(workspace), "-name", ".git", "-type", "d", "-prune", "-print0")
    for name in filter(None, (await run_tool(*search, deadline_s=deadline_s)).split(b"\0")):
        git_dir = Path(os.fsdecode(name))
        if shutil.which("git") is None:
            raise SandboxError(f"{git_dir} is a repository and git is missing: install the package git")
        modules = [head.parent for head in (git_dir / "modules").rglob("HEAD") if (head.parent / "objects").is_dir()]
        for repository in (git_dir, *modules):
            await _forget(repository, deadline_s)


async def _forget(git_dir: Path, deadline_s: float) -> None:
    async def git(*arguments: str) -> str:
        command = ("git", "--git-dir", str(git_dir), *_QUIET, *arguments)
        return os.fsdecode(await run_tool(*command, deadline_s=deadline_s)).strip()

    try:
        tree = await git("rev-parse", "--verify", "HEAD^{tree}")
    except SandboxError:
        tree = ""
    branch = os.fsdecode((git_dir / "HEAD").read_bytes()).removeprefix("ref: ").strip()
    commit = await git(*_NOBODY, "commit-tree", tree, "-m", "Initial state") if tree else ""
    _strip(git_dir)
    for remote in (await git("remote")).split():
        await git("remote", "remove", remote)
    if commit:
        await git("update-ref", "--no-deref", branch if branch.startswith("refs/") else "HEAD", commit)
    await git("gc", "--quiet", "--prune=now")
    _remove(git_dir / "logs")


def _strip(git_dir: Path) -> None:
    for entry in git_dir.iterdir():
        if entry.name not in _KEPT:
            _remove(entry)
    _remove(git_dir / "objects" / "info" / "alternates")
    (git_dir / "refs" / "heads").mkdir(parents=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
