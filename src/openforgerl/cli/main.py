"""`openforgerl COMMAND`: a user's error is one line and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from openforgerl import __version__
from openforgerl.errors import OpenForgeError


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 where a check fails, 2 for a user's error, 130 after Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        command = importlib.import_module(f"openforgerl.cli.{arguments.command}")
        return int(command.run(arguments))
    except OpenForgeError as error:
        print(f"openforgerl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """Knows every command; imports none."""
    top = argparse.ArgumentParser(prog="openforgerl", description="Train a model inside the agent harness it is for.")
    top.add_argument("--version", action="version", version=f"openforgerl {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="warm start, GRPO and held-out evaluations, as a TOML file says")
    _config(train)
    train.add_argument("--run", type=Path, metavar="FOLDER", help="the run's folder (default: runs/<date>-<time>)")
    train.add_argument("--resume", action="store_true", help="go on with the run in --run FOLDER")

    _config(commands.add_parser("serve", help="answer and record the model calls of harnesses"))

    report = commands.add_parser("report", help="write RUN/report.html anew")
    report.add_argument("run", type=Path, metavar="RUN")

    verify = commands.add_parser("verify", help="check receipts and token accounts of a run; exit code 1 if one breaks")
    verify.add_argument("run", type=Path, metavar="RUN")
    return top


def _config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", type=Path, metavar="CONFIG.toml")
    command.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="change one field, e.g. --set harness.name=react; may be repeated",
    )
