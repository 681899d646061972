"""Writes the example tasks: small shell jobs as Harbor task folders, the same bytes on every run.

`make_tasks.py` writes train/ and heldout/ beside this file. `make_tasks.py --check` proves, in bubblewrap, that every
task is solved by its own solution and not by doing nothing, and that the folders are what this script writes.
Held-out tasks are of the same families as the training tasks, with other names, words and numbers.
"""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

STEMS = {
    "train": "notes report tasks memo draft story plan recipe diary letter budget agenda poem guide menu survey",
    "heldout": "journal summary chores invoice essay novel route script schedule postcard ledger minutes",
}
WORDS = {
    "train": "blue sky green tree red house cold winter quick fox warm bread old river small boat bright moon",
    "heldout": "silver lake happy dog dark forest sweet apple tall tower gentle wind golden leaf quiet street",
}
NAMES = {
    "train": "anna carl dora emil frida gustav hanna ivan jonas karin lena mario nora oscar paula rosa",
    "heldout": "alice bruno clara david elena felix greta hugo irene jakob laura martin nina otto",
}
FOLDERS = {
    "train": "photos music archive work images letters games tools",
    "heldout": "videos books travel school recipes backups projects",
}

CHECKS = (HERE / "checks.sh").read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task before it is written."""

    instruction: str
    solution: str
    """The one shell command that solves it."""
    checks: tuple[str, ...]
    """Lines of test.sh."""
    files: dict[str, str] = field(default_factory=dict)
    """The first state of the workspace: path -> text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Draws the names, words and numbers of one task from its split's pools."""

    split: str
    rng: random.Random

    def files(self, count: int, ending: str = ".txt") -> list[str]:
        return [stem + ending for stem in self.rng.sample(STEMS[self.split].split(), count)]

    def words(self, count: int) -> list[str]:
        return self.rng.sample(WORDS[self.split].split(), count)

    def names(self, count: int) -> list[str]:
        return self.rng.sample(NAMES[self.split].split(), count)

    def folders(self, count: int) -> list[str]:
        return self.rng.sample(FOLDERS[self.split].split(), count)

    def text(self) -> str:
        return lines(" ".join(self.words(3)) for _ in range(self.rng.randint(3, 6)))


def lines(parts: Iterator[str] | list[str]) -> str:
    return "".join(f"{part}\n" for part in parts)


def has_text(path: str, text: str) -> str:
    return f"has_text /workspace/{path} {shlex.quote(text.rstrip())}"


def is_folder(path: str) -> str:
    return f"is_folder /workspace/{path}"


def is_absent(path: str) -> str:
    return f"is_absent /workspace/{path}"


def write_line(draw: Draw) -> Task:
    (target,), text = draw.files(1), " ".join(draw.words(2))
    return Task(
        instruction=f"Write the line {text} to {target}.",
        solution=f"echo {text} > {target}",
        checks=(has_text(target, text),),
    )


def append_line(draw: Draw) -> Task:
    (target,), text, before = draw.files(1), " ".join(draw.words(2)), draw.text()
    return Task(
        instruction=f"Add the line {text} to the end of {target}.",
        solution=f"echo {text} >> {target}",
        checks=(has_text(target, before + text),),
        files={target: before},
    )


def copy_file(draw: Draw) -> Task:
    (source, target), text = draw.files(2), draw.text()
    return Task(
        instruction=f"Copy {source} to {target}.",
        solution=f"cp {source} {target}",
        checks=(has_text(source, text), has_text(target, text)),
        files={source: text},
    )


def rename_file(draw: Draw) -> Task:
    (source, target), text = draw.files(2), draw.text()
    return Task(
        instruction=f"Rename {source} to {target}.",
        solution=f"mv {source} {target}",
        checks=(is_absent(source), has_text(target, text)),
        files={source: text},
    )


def delete_file(draw: Draw) -> Task:
    (target, other), text = draw.files(2, ".log"), draw.text()
    return Task(
        instruction=f"Delete the file {target}.",
        solution=f"rm {target}",
        checks=(is_absent(target), has_text(other, text)),
        files={target: draw.text(), other: text},
    )


def make_folder(draw: Draw) -> Task:
    (folder,) = draw.folders(1)
    return Task(instruction=f"Make a folder named {folder}.", solution=f"mkdir {folder}", checks=(is_folder(folder),))


def count_lines(draw: Draw) -> Task:
    (source, target), text = draw.files(2), draw.text()
    return Task(
        instruction=f"Count the lines of {source} and write the number to {target}.",
        solution=f"wc -l < {source} > {target}",
        checks=(has_text(target, str(text.count("\n"))),),
        files={source: text},
    )


def first_line(draw: Draw) -> Task:
    (source, target), text = draw.files(2), draw.text()
    return Task(
        instruction=f"Write the first line of {source} to {target}.",
        solution=f"head -n 1 {source} > {target}",
        checks=(has_text(target, text.splitlines()[0]),),
        files={source: text},
    )


def sort_lines(draw: Draw) -> Task:
    (source, target), names = draw.files(2), draw.names(6)
    return Task(
        instruction=f"Sort the lines of {source} and write them to {target}.",
        solution=f"sort {source} > {target}",
        checks=(has_text(target, lines(sorted(names))),),
        files={source: lines(names)},
    )


def upper_case(draw: Draw) -> Task:
    (source, target), text = draw.files(2), draw.text()
    return Task(
        instruction=f"Write the text of {source} in upper case to {target}.",
        solution=f"tr a-z A-Z < {source} > {target}",
        checks=(has_text(target, text.upper()),),
        files={source: text},
    )


FAMILIES: dict[str, Callable[[Draw], Task]] = {
    family.__name__.replace("_", "-"): family
    for family in (
        copy_file, rename_file, delete_file, make_folder, write_line, append_line, sort_lines, count_lines,
        first_line, upper_case,
    )
}  # fmt: skip
COUNTS = {"train": 4, "heldout": 2}


def make_tasks(split: str, count: int) -> dict[str, Task]:
    """Returns the tasks of a split by id, `count` of each family."""
    tasks: dict[str, Task] = {}
    for name, family in FAMILIES.items():
        for index in range(1, count + 1):
            task_id = f"{name}-{split}-{index}"
            rng = random.Random(task_id)
            while (task := family(Draw(split=split, rng=rng))).instruction in {t.instruction for t in tasks.values()}:
                pass
            tasks[task_id] = task
    return tasks


def task_files(task_id: str, task: Task) -> dict[str, str]:
    """Returns the text of every file of a Harbor task folder by its path."""
    family = task_id.rsplit("-", 2)[0]
    copy = "COPY workspace/ /workspace/\n" if task.files else ""
    toml = (
        f'schema_version = "1.4"\n\n[task]\nname = "openforgerl/{task_id}"\n'
        f'description = "A small shell job: {family}"\nkeywords = ["shell"]\n\n[metadata]\nfamily = "{family}"\n\n'
        "[agent]\ntimeout_sec = 60.0\n\n[verifier]\ntimeout_sec = 20.0\n\n[environment]\nbuild_timeout_sec = 600.0\n"
    )
    return {
        "task.toml": toml,
        "instruction.md": task.instruction + "\n",
        "environment/Dockerfile": f"FROM debian:12-slim\nWORKDIR /workspace\n{copy}",
        "tests/test.sh": CHECKS + lines(["", *task.checks, 'echo 1 >"$reward"']),
        "solution/solve.sh": f"#!/bin/bash\ncd /workspace || exit 1\n{task.solution}\n",
    } | {f"environment/workspace/{path}": text for path, text in task.files.items()}


def write_folders(root: Path) -> None:
    for split, count in COUNTS.items():
        shutil.rmtree(root / split, ignore_errors=True)
        for task_id, task in make_tasks(split, count).items():
            for name, text in task_files(task_id, task).items():
                path = root / split / task_id / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def run_sandboxed(folder: Path, mounted: str, script: str, workspace: Path, logs: Path) -> None:
    """Runs a script of the task with the workspace and the logs at their places, without network."""
    system = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"]
    system += ["--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    binds = ["--ro-bind", str(folder / mounted), f"/{mounted}"]
    binds += ["--bind", str(workspace), "/workspace", "--bind", str(logs), "/logs"]
    command = ["bwrap", "--unshare-all", "--die-with-parent", *system, *binds, "/bin/bash", f"/{mounted}/{script}"]
    subprocess.run(command, check=True, timeout=20, capture_output=True)


def reward_of(folder: Path, *, solve: bool) -> str:
    """Returns what the task's test writes after its solution, or after nothing."""
    with tempfile.TemporaryDirectory() as name:
        workspace, logs = Path(name, "workspace"), Path(name, "logs")
        logs.mkdir()
        initial = folder / "environment/workspace"
        shutil.copytree(initial, workspace) if initial.is_dir() else workspace.mkdir()
        if solve:
            run_sandboxed(folder, "solution", "solve.sh", workspace, logs)
        run_sandboxed(folder, "tests", "test.sh", workspace, logs)
        return (logs / "verifier/reward.txt").read_text().strip()


def faults(root: Path) -> Iterator[str]:
    """Yields one line for every task folder that is not what it should be."""
    for split, count in COUNTS.items():
        tasks = make_tasks(split, count)
        for stray in {path.name for path in (root / split).iterdir()} - set(tasks):
            yield f"{split}/{stray}: not written by this script"
        for task_id, task in tasks.items():
            folder = root / split / task_id
            written = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
            if written != task_files(task_id, task):
                yield f"{split}/{task_id}: differs from what this script writes; run it again"
            elif (rewards := [reward_of(folder, solve=solve) for solve in (True, False)]) != ["1", "0"]:
                yield f"{split}/{task_id}: solved and untouched it is graded {rewards}, expected ['1', '0']"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="check the folders instead of writing them")
    if not parser.parse_args().check:
        write_folders(HERE)
        return 0
    found = list(faults(HERE))
    print("\n".join(found) or f"{sum(COUNTS.values()) * len(FAMILIES)} tasks are right")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
