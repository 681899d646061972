"""A run on disk: what is where, and the one file whose replacement commits a step.

Order of a commit: checkpoint folder, trainer state, progress.json. A crash before the last leaves the earlier step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openforgerl.errors import ConfigError, StoreError
from openforgerl.trainers.folders import remove_versions


class UseRecord(BaseModel):
    """A `Use`, as the commit of a step carries it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_id: str
    phase: Literal["sft", "grpo", "evaluation"]
    step: int
    trained: bool
    reason: str = ""


class Evaluation(BaseModel):
    """Held-out reward of one policy version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_reward: float
    rollouts: int
    graded: int
    policy_version: int
    by_task: Mapping[str, float] = Field(default_factory=dict)


class Progress(BaseModel):
    """Everything that a resumed run must know beside the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy_version: int = 0
    sft_steps: int = 0
    grpo_steps: int = 0
    evaluations: Mapping[str, Evaluation] = Field(default_factory=dict)
    metrics: tuple[Mapping[str, float | int | str], ...] = ()
    """One entry a step; metrics.jsonl is written from it."""
    seconds: Mapping[str, float] = Field(default_factory=dict)
    last_uses: tuple[UseRecord, ...] = ()
    """Of the last commit; appended to the store after it, once more by a resume."""


class RunFolder:
    """Paths of a run, and its commits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        self.logs = root / "logs"
        self.report = root / "report.html"
        self.config = root / "config.resolved.toml"
        self._progress = root / "progress.json"

    @property
    def exists(self) -> bool:
        return self._progress.exists()

    @property
    def foreign(self) -> str:
        """An entry that `create` and an unfinished first commit do not leave; "" where there is none."""
        own = {self.config, self._progress.with_suffix(".tmp")}
        for entry in sorted(self.root.iterdir()) if self.root.exists() else ():
            made = entry in self._folders and entry.is_dir() and not any(entry.iterdir())
            if not made and entry not in own:
                return entry.name
        return ""

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self.store, self.logs, self.root / "checkpoints", self.root / "state"

    def create(self) -> None:
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)

    def checkpoint(self, policy_version: int) -> Path:
        """A Hugging Face folder."""
        return self.root / "checkpoints" / f"v{policy_version}"

    def state(self, policy_version: int) -> Path:
        """Optimizer and random state beside that checkpoint."""
        return self.root / "state" / f"v{policy_version}"

    def read_progress(self) -> Progress:
        """Raises ConfigError where the file is not a progress of ours."""
        try:
            return Progress.model_validate_json(self._progress.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(f"{self.root} holds no run: {self._progress.name} is missing") from error
        except OSError as error:
            raise ConfigError(f"{self._progress} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            raise ConfigError(f"{self._progress} is not readable: {error.errors()[0]['msg']}") from error

    def commit(self, progress: Progress) -> None:
        """Raises StoreError, then the earlier commit stands."""
        _replace(self._progress, progress.model_dump_json(indent=1).encode())
        lines = [orjson.dumps(dict(entry)) for entry in progress.metrics]
        _replace(self.root / "metrics.jsonl", b"".join(line + b"\n" for line in lines))

    def prune(self, *, checkpoints: frozenset[int], states: frozenset[int]) -> None:
        """Remove those of all other versions, and what a crash left half written."""
        for kind, versions in (("checkpoints", checkpoints), ("state", states)):
            remove_versions(self.root / kind, versions)


def _replace(file: Path, content: bytes) -> None:
    """Atomic and durable: temporary file, fsync, rename, fsync of the folder. Raises StoreError."""
    temporary = file.with_suffix(".tmp")
    try:
        _write(temporary, file, content)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StoreError(f"{file} cannot be written: {error.strerror}") from error


def _write(temporary: Path, file: Path, content: bytes) -> None:
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
