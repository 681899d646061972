"""`openforgerl report RUN`: write RUN/report.html anew; and the reports that a training writes as it goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from openforgerl.cli.building import model_folder
from openforgerl.cli.config import Config
from openforgerl.cli.loading import load_config
from openforgerl.errors import ConfigError
from openforgerl.web.report import write_report
from openforgerl.workflows.run_folder import RunFolder


def run(arguments: argparse.Namespace) -> int:
    print(write(RunFolder(arguments.run)))
    return 0


def write(folder: RunFolder) -> Path:
    """The path of the report. Raises ConfigError, StoreError."""
    folder.read_progress()
    return write_report(folder, model=_model(folder))


def _model(folder: RunFolder) -> Path | None:
    """Where the tokenizer is; a run whose config or model is gone has its checkpoints."""
    try:
        config = load_config(folder.config)
    except ConfigError:
        config = Config()
    try:
        return model_folder(config)
    except ConfigError:
        return None
