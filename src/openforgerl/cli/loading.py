"""A TOML file becomes a Config, or one ConfigError line: the file, the field, its value, and the way out."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from openforgerl.cli.config import RELATIVE_TO_FILE, Config
from openforgerl.cli.explaining import explain, name
from openforgerl.cli.fields import knows_none
from openforgerl.errors import ConfigError, OpenForgeError

Tree = dict[str, object]


def load_config(file: Path, overrides: Sequence[str] = ()) -> Config:
    """`overrides` are texts like "rollout.concurrency=4", TOML values, applied last. Raises ConfigError."""
    tree = _parsed(file)
    _absolute(tree, file.parent)
    for override in overrides:
        _apply(tree, override)
    with blaming(file, overrides):
        return build(tree, "")


def build(tree: Mapping[str, object], source: str) -> Config:
    """Raises ConfigError in the name of `source`; "" where the caller names it."""
    place = f"{source}: " if source else ""
    _check_finite(tree, (), place)
    try:
        return Config.model_validate(_with_none(dict(tree), ()))
    except ValidationError as error:
        raise ConfigError(f"{place}{explain(error)}") from error


@contextmanager
def blaming(file: Path, overrides: Sequence[str]) -> Iterator[None]:
    """An error that begins with a field, "[section] ...", says where that was written: --set, or the file."""
    try:
        yield
    except OpenForgeError as error:
        message = str(error)
        if not message.startswith("["):
            raise
        said = [f"--set {override}" for override in overrides if _sets(override, message)]
        raise ConfigError(f"{said[-1] if said else file}: {message}") from error


def _sets(override: str, message: str) -> bool:
    keys = override.partition("=")[0].strip().split(".")
    field = rf"{re.escape(name(keys))}(?![\w-])" if len(keys) > 1 else rf"\[{re.escape(keys[0])}[\].]"
    return re.match(rf"{field}|\[{re.escape(keys[0])}\] is unknown", message) is not None


def _parsed(file: Path) -> Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{file} does not exist: name a TOML file, e.g. examples/shell_tasks/train.toml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _apply(tree: Tree, override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: write section.key=value, e.g. rollout.concurrency=4")
    for key in keys[:-1]:
        below = tree.setdefault(key, {})
        if not isinstance(below, dict):
            raise ConfigError(f"--set {override}: {key} is a value, not a section")
        tree = below
    tree[keys[-1]] = _value(text.strip())


def _value(text: str) -> object:
    """A TOML value; what is none is a plain string, so that a shell's quotes need not be doubled."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _absolute(tree: Tree, folder: Path) -> None:
    for section, key in RELATIVE_TO_FILE:
        table = tree.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str((folder / Path(table[key]).expanduser()).resolve())


def _with_none(tree: Tree, path: tuple[str, ...]) -> Tree:
    """TOML has no null: "none" says it where None is allowed but not the default."""
    result: Tree = {}
    for key, value in tree.items():
        here = (*path, key)
        if isinstance(value, dict):
            result[key] = _with_none(value, here)
        else:
            result[key] = None if value == "none" and knows_none(Config, here) else value
    return result


def _check_finite(value: object, path: tuple[str, ...], place: str) -> None:
    if isinstance(value, Mapping):
        for key, below in value.items():
            _check_finite(below, (*path, str(key)), place)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{place}{name(path)} = {value}: give a finite number")
