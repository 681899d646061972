"""Harbor's task folders, read as they are: task.toml, instruction.md, environment/, tests/test.sh, solution/.

The process runtime builds no image: the initial workspace is `environment/workspace/`, which the task's own Dockerfile
copies to /workspace.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path

from openforgerl.errors import TaskError
from openforgerl.records import Task


def load_tasks(folder: Path) -> tuple[Task, ...]:
    """Every task folder below `folder`, by name. Raises TaskError, also where there is none."""
    if not folder.is_dir():
        raise TaskError(f"tasks folder {folder} does not exist: give a folder of Harbor task folders")
    tasks = tuple(load_task(entry.parent) for entry in sorted(folder.glob("*/task.toml")))
    if not tasks:
        raise TaskError(f"{folder} holds no task: expected <task>/task.toml below it")
    return tasks


def load_task(folder: Path) -> Task:
    """One task folder. Raises TaskError that names the file at fault."""
    settings = _toml(folder / "task.toml")
    tests = folder / "tests"
    if not (tests / "test.sh").is_file():
        raise TaskError(f"{tests / 'test.sh'} is missing: a task without tests cannot be graded")
    workspace = folder / "environment" / "workspace"
    try:
        return Task(
            task_id=folder.name,
            instruction=_text(folder / "instruction.md"),
            folder=folder.resolve(),
            tests=tests.resolve(),
            workspace=workspace.resolve() if workspace.is_dir() else None,
            agent_timeout_s=_seconds(folder, settings, "agent"),
            grader_timeout_s=_seconds(folder, settings, "verifier"),
            reward_range=_reward_range(folder, settings),
            metadata={key: str(value) for key, value in _table(folder, settings, "metadata").items()},
        )
    except ValueError as error:
        raise TaskError(f"{folder}: {error}") from error


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {error}") from error
    if not text:
        raise TaskError(f"{file} is empty: say what the agent shall do")
    return text


def _toml(file: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TaskError(f"{file}: {error}") from error


def _table(folder: Path, settings: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise TaskError(f"{folder / 'task.toml'}: [{name}] must be a table, not {table!r}")
    return table


def _seconds(folder: Path, settings: Mapping[str, object], table: str) -> float:
    """Harbor's default is 600 s."""
    value = _table(folder, settings, table).get("timeout_sec", 600.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TaskError(
            f"{folder / 'task.toml'}: [{table}] timeout_sec = {value!r} must be a positive number of seconds"
        )
    return float(value)


def _reward_range(folder: Path, settings: Mapping[str, object]) -> tuple[float, float]:
    value = _table(folder, settings, "metadata").get("reward_range", [0.0, 1.0])
    match value:
        case [int() | float() as low, int() | float() as high] if low < high and math.isfinite(high - low):
            return float(low), float(high)
    raise TaskError(
        f"{folder / 'task.toml'}: [metadata] reward_range = {value!r} must be [low, high], two finite numbers"
    )
