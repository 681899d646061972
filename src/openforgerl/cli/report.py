"""`openforgerl report RUN`: write RUN/report.html anew; and the reports that a training writes as it goes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from openforgerl.cli.building import model_folder
from openforgerl.cli.config import Config
from openforgerl.cli.loading import load_config
from openforgerl.errors import ConfigError
from openforgerl.records import Session
from openforgerl.web.report import write_report
from openforgerl.workflows.listener import Listener
from openforgerl.workflows.run_folder import RunFolder


def run(arguments: argparse.Namespace) -> int:
    print(write(RunFolder(arguments.run)))
    return 0


def write(folder: RunFolder) -> Path:
    """The path of the report. Raises ConfigError, StoreError."""
    folder.read_progress()
    return write_report(folder, model=_model(folder))


def _model(folder: RunFolder) -> Path | None:
    """Where the tokenizer may be; a run whose config or model is gone has its checkpoints."""
    try:
        config = load_config(folder.config)
    except ConfigError:
        config = Config()
    try:
        return model_folder(config)
    except ConfigError:
        return None


class View(Listener, Protocol):
    """A listener that also takes a line of its own."""

    def note(self, line: str) -> None: ...


class Reporting:
    """A Listener that writes the report after every evaluation, in a thread beside the loop, and once more at the end.

    A failure costs the report, never the run.
    """

    def __init__(self, folder: RunFolder, view: View) -> None:
        self._folder = folder
        self._view = view
        self._stale = True
        self._writing: asyncio.Task[None] | None = None

    def phase(self, name: str, rollouts: int) -> None:
        self._view.phase(name, rollouts)

    def attempt(self, session: Session) -> None:
        self._stale = True
        self._view.attempt(session)

    def step(self, name: str, metrics: Mapping[str, float | int | str]) -> None:
        self._stale = True
        self._view.step(name, metrics)
        if name.startswith("heldout") and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(self._write())

    async def aclose(self) -> None:
        """Waits for a report in work, and writes one if anything happened since it began."""
        if self._writing is not None:
            await self._writing
        if self._stale:
            await self._write()

    async def _write(self) -> None:
        self._stale = False
        self._view.note(await asyncio.to_thread(_told, self._folder))


def _told(folder: RunFolder) -> str:
    try:
        return f"report: {write(folder)}"
    except Exception as error:  # the boundary of the report: whatever fails in it is told, and the run goes on
        return f"report not written: {type(error).__name__}: {error}"
