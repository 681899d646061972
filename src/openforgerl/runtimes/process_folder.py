"""The folder of one sandbox: claimed by a lock that dies with its owner, read without following links, removed whole.

<root>/<run id>/<session id>/{owner, workspace/, logs/verifier/}; <root>/.users holds the claims of user ids.
Everything under workspace/ and logs/ was written by others: no path there is opened by its name alone.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from openforgerl.errors import ConfigError, SandboxError
from openforgerl.runtimes.base import WORKSPACE
from openforgerl.runtimes.process_history import forget_other_commits
from openforgerl.runtimes.process_tree import run_tool

TOOL_DEADLINE_S = 120.0
REMOVAL_DEADLINE_S = 20.0
_SLOTS = 10_000


def own_root(root: Path) -> None:
    """Make the folder of all sandboxes, or check that nobody else can have prepared it. Raises ConfigError."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.lstat()
    except OSError as error:
        raise ConfigError(f"[runtime] root = {str(root)!r} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"[runtime] root = {str(root)!r} must be a folder of yours with mode 0700")


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Held for moments only, so that claims, removals and sweeps see each other's work finished."""
    descriptor = _open_lock(root / ".lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class UserSlot:
    """A claim on a pair of user ids of this machine that no other live sandbox under this root has.

    Slot n is byte n of <root>/.users, locked by this open file, so that the kernel ends the claim with its owner.
    """

    def __init__(self, root: Path, first_uid: int) -> None:
        self._file = _open_lock(root / ".users")
        start = random.randrange(_SLOTS)
        for number in range(start, start + _SLOTS):
            slot = number % _SLOTS
            try:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, slot, 1, 0))
            except BlockingIOError:
                continue
            self.agent = first_uid + 2 * slot
            self.grader = self.agent + 1
            return
        os.close(self._file)
        raise SandboxError(f"all {_SLOTS} pairs of user ids are in use")

    def release(self) -> None:
        os.close(self._file)


class SandboxFolder:
    """A live claim on one sandbox's folder."""

    def __init__(self, root: Path, run_id: str, session_id: str) -> None:
        self.path = root / run_id / session_id
        self.workspace = self.path / "workspace"
        self.logs = self.path / "logs"
        self._root = root
        self._owner: int | None = None
        try:
            with _locked(root):
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._claim()
        except BlockingIOError as error:
            raise SandboxError(f"session {session_id} of run {run_id} has a live sandbox already") from error
        except OSError as error:
            raise SandboxError(f"cannot make the folder of a sandbox: {error}") from error

    def _claim(self) -> None:
        self._lock = _open_lock(self.path / "owner")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise

    async def fill(self, workspace: Path | None) -> None:
        """Begin with a copy of the initial files; what an earlier attempt left is removed."""
        for leftover in (self.workspace, self.logs):
            await _remove_if_there(leftover)
        self.workspace.mkdir(mode=0o700)
        self.logs.mkdir(mode=0o711)
        if workspace is not None:
            await run_tool("cp", "-a", "--no-preserve=ownership", f"{workspace}/.", str(self.workspace),
                           deadline_s=TOOL_DEADLINE_S)  # fmt: skip
            await forget_other_commits(self.workspace, deadline_s=TOOL_DEADLINE_S)

    async def fresh_verifier_logs(self) -> Path:
        folder = self.logs / "verifier"
        await _remove_if_there(folder)
        folder.mkdir(mode=0o700)
        return folder

    async def give_to(self, uid: int) -> None:
        """Make `uid` the owner of the workspace's files, links themselves included; modes stay."""
        if uid == self._owner:
            return
        self._owner = uid
        await run_tool("chown", "-R", "-h", "-P", f"{uid}:{uid}", str(self.workspace), deadline_s=TOOL_DEADLINE_S)

    async def open_up(self) -> None:
        """Let the owner read what the agent locked; what the owner can read already keeps its mode."""
        await run_tool("chmod", "-R", "u+rX", str(self.workspace), deadline_s=TOOL_DEADLINE_S)

    def write(self, path: str, content: bytes, uid: int) -> None:
        """A new file of `uid` alone under /workspace, with the folders on its way. Raises SandboxError."""
        try:
            place = PurePosixPath(path).relative_to(WORKSPACE).parts
            if ".." in place or not place:
                raise ValueError("not a path below the workspace")
            _write_beneath(self.workspace, place, content, uid)
        except (OSError, ValueError) as error:
            raise SandboxError(f"cannot write the plan's file {path}: {error}") from error

    def read(self, path: str, cap_bytes: int) -> bytes | None:
        """A regular file of at most `cap_bytes` under /workspace or /logs, or None."""
        place = PurePosixPath(path).parts[1:]
        if len(place) < 2 or place[0] not in ("workspace", "logs") or ".." in place or not path.startswith("/"):
            return None
        return _read_beneath(self.path, place, cap_bytes)

    async def remove(self) -> bool:
        """Out of sight at once, then removed; false where that takes too long and is left to the next sweep.

        What an agent made must not be able to hold up, or to spoil, a session that has ended.
        """
        garbage = self._root / ".gone" / f"{self.path.parent.name}.{self.path.name}.{secrets.token_hex(4)}"
        with _locked(self._root):
            garbage.parent.mkdir(mode=0o700, exist_ok=True)
            self.path.rename(garbage)
            os.close(self._lock)
            _remove_if_empty(self.path.parent)
        try:
            await remove_tree(garbage, deadline_s=REMOVAL_DEADLINE_S)
        except SandboxError:
            return False
        return True


def _read_beneath(base: Path, place: tuple[str, ...], cap_bytes: int) -> bytes | None:
    """Step by step, so that no part can be a link; O_PATH first, so that opening a device or FIFO does nothing."""
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in place:
            step = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = step
        found = os.fstat(folder)
        if not stat.S_ISREG(found.st_mode) or found.st_size > cap_bytes:
            return None
        with open(f"/proc/self/fd/{folder}", "rb") as file:
            content = file.read(cap_bytes + 1)
        return content if len(content) <= cap_bytes else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(folder)


def _write_beneath(base: Path, place: tuple[str, ...], content: bytes, uid: int) -> None:
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in place[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=folder)
                os.chown(part, uid, uid, dir_fd=folder, follow_symlinks=False)
            step = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = step
        with suppress(FileNotFoundError):
            os.unlink(place[-1], dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(place[-1], flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            os.fchown(file.fileno(), uid, uid)
    finally:
        os.close(folder)


async def remove_tree(path: Path, *, deadline_s: float = TOOL_DEADLINE_S) -> None:
    """Remove a tree of any depth and any modes without following links. Raises SandboxError."""
    remove = ("rm", "-rf", "--one-file-system", "--", str(path))
    ends = time.monotonic() + deadline_s
    try:
        await run_tool(*remove, deadline_s=deadline_s)
    except SandboxError:
        left_s = ends - time.monotonic()
        if left_s <= 0:
            raise
        await run_tool("chmod", "-R", "u+rwX", str(path), deadline_s=left_s)
        await run_tool(*remove, deadline_s=left_s)


async def _remove_if_there(path: Path) -> None:
    if os.path.lexists(path):  # noqa: ASYNC240
        await remove_tree(path)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return


def dead_sandboxes(root: Path, run_id: str) -> list[SandboxFolder]:
    """Claims on the folders of a run whose owners are dead."""
    claims = []
    for entry in sorted((root / run_id).glob("*")):
        try:
            claims.append(SandboxFolder(root, run_id, entry.name))
        except SandboxError:
            continue
    return claims


def garbage(root: Path, run_id: str) -> list[Path]:
    """What a removal that did not end left of a run."""
    return sorted((root / ".gone").glob(f"{run_id}.*"))
