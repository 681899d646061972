"""`openforgerl COMMAND`: a user's error is one line and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from openforgerl import __version__
from openforgerl.cli.stopping import INTERRUPTED
from openforgerl.errors import OpenForgeError

USER_ERROR = 2
_OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 where a check fails, 2 for an error that the user can mend, 130 after Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        command = importlib.import_module(f"openforgerl.cli.{arguments.command}")
        return int(command.run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OpenForgeError, OSError, ExceptionGroup) as error:
        line = _one_line(error)
        if line is None:
            raise
        print(f"openforgerl: {line}", file=sys.stderr)
        return USER_ERROR


def _one_line(error: Exception) -> str | None:
    """What a person can act on; None for a fault of ours, which keeps its traceback."""
    if isinstance(error, ExceptionGroup):
        lines = [_one_line(each) for each in error.exceptions]
        return None if None in lines else lines[0]
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}" if error.errno in _OF_THE_MACHINE else None
    return str(error) if isinstance(error, OpenForgeError) else None


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
