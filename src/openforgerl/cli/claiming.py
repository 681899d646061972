"""A training run takes its folder: a new one, or one that it goes on with under the same config."""

from __future__ import annotations

import hashlib
import re
import tomllib

from openforgerl.cli.config import Config
from openforgerl.cli.loading import build
from openforgerl.cli.resolved import to_toml
from openforgerl.errors import ConfigError
from openforgerl.workflows.run_folder import Progress, RunFolder

_FREE: dict[str, bool | set[str]] = {
    "proxy": {"host", "port"}, "store": True, "runtime": {"root"}, "trainer": {"max_gap"},
}  # fmt: skip
"""What a resumed run may change: places, and a limit, that touch nothing that was sampled or trained."""


def claim(run: RunFolder, config: Config, *, resume: bool) -> Progress:
    """How far the run is. Raises ConfigError where the folder is taken, holds no run, or holds another."""
    if resume and not run.root.is_dir():
        raise ConfigError(f"--resume: there is no folder {run.root}")
    going_on = resume and run.exists
    if going_on:
        _check_same(run, config)
    elif run.exists:
        raise ConfigError(f"--run {run.root} holds a run: add --resume to go on with it, or name another folder")
    try:
        if going_on:
            run.create()  # again what was deleted to make room, e.g. logs/
            return run.read_progress()
        _check_free(run, resume=resume)
        run.create()
        run.config.write_text(to_toml(config), encoding="utf-8")
        run.commit(Progress())
    except OSError as error:
        raise ConfigError(f"--run {run.root}: {error.strerror}: {error.filename}") from error
    return Progress()


def _check_free(run: RunFolder, *, resume: bool) -> None:
    """What is not ours is never written into: files that a user keeps there could be taken for the run's own."""
    held = run.foreign or (not resume and run.root.is_dir() and next((e.name for e in run.root.iterdir()), ""))
    if held:
        raise ConfigError(f"--run {run.root} is no run and holds other files ({held}): name a new or an empty folder")


def _check_same(run: RunFolder, config: Config) -> None:
    earlier = build(tomllib.loads(run.config.read_text(encoding="utf-8")), str(run.config))
    changes = _differences(earlier.model_dump(exclude=_FREE), config.model_dump(exclude=_FREE), ())
    if changes:
        raise ConfigError(f"--resume: {run.root} was started with {changes[0]}: start a new run, or change it back")


def _differences(earlier: object, now: object, path: tuple[str, ...]) -> list[str]:
    if isinstance(earlier, dict) and isinstance(now, dict):
        keys = sorted({*earlier, *now})
        return [text for key in keys for text in _differences(earlier.get(key), now.get(key), (*path, key))]
    return [] if earlier == now else [f"{'.'.join(path)} = {earlier}, not {now}"]


def run_id(run: RunFolder) -> str:
    """The same for the same folder, another for any other of that name."""
    path = str(run.root.resolve())
    name = re.sub(r"[^a-z0-9]+", "-", run.root.name.lower()).strip("-")[:40]
    return f"{name or 'run'}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
