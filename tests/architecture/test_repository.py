"""What the repository may not hold, and what its front page promises."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from openforgerl.cli.main import parser

ROOT = Path(__file__).parents[2]
# Hosts of package registries and paths of one machine; each written so that this file does not hold it itself.
FORBIDDEN = re.compile(
    r"pypi\.o[r]g|pythonhosted\.o[r]g|registry\.npmj[s]|deb\.debia[n]|download\.pytorc[h]|(?<![a-z0-9])/(?:roo[t]|wor[k]|opt/wheel[s])/"
)


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for name in listing.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_no_tracked_file_names_a_registry_host_or_a_machine_path() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


def comes_otherwise(entry: dict[str, Any]) -> bool:
    """Inside another package, or an optional binary that Linux on x64 with glibc never installs."""
    runs_here = "linux" in entry.get("os", ()) and "x64" in entry.get("cpu", ()) and "musl" not in entry.get("libc", ())
    return bool(entry.get("inBundle")) or (bool(entry.get("optional")) and not runs_here)


def test_npm_pins_are_exact_and_name_no_place() -> None:
    locks = sorted((ROOT / "src/openforgerl/harnesses/pins").glob("*/package-lock.json"))
    assert locks
    for lock in locks:
        packages = {name: entry for name, entry in json.loads(lock.read_text())["packages"].items() if name}
        assert not any("resolved" in entry for entry in packages.values()), lock
        assert all(entry.get("integrity") or comes_otherwise(entry) for entry in packages.values()), lock


def test_pip_locks_are_exact_and_name_no_place() -> None:
    locks = [ROOT / "requirements/dev.lock", *(ROOT / "src/openforgerl/harnesses/pins").glob("*.lock")]
    assert len(locks) >= 2
    for lock in locks:
        assert [
            line for line in lock.read_text().splitlines() if not re.fullmatch(r"[a-z0-9_.-]+==[^=@/]+", line)
        ] == []


def test_the_lock_holds_every_requirement_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [re.match(r"[A-Za-z0-9_-]+", line) for line in [*project["dependencies"], *extras["local"], *extras["dev"]]]
    locked = {line.partition("==")[0] for line in (ROOT / "requirements/dev.lock").read_text().splitlines()}
    assert {name.group().lower() for name in names if name} - locked == set()


def test_commands_of_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", readme, re.MULTILINE))
    commands = {first or second for first, second in named}
    assert {"train", "test"} <= commands
    assert commands <= targets


def test_openforgerl_commands_of_the_readme_parse() -> None:
    named = re.findall(r"`(?:\.venv/bin/)?openforgerl ([^`]+)`", (ROOT / "README.md").read_text())
    assert {command.split()[0] for command in named} == {"train", "serve", "report", "verify"}
    for command in named:
        assert parser().parse_args(shlex.split(command)).command == command.split()[0]
