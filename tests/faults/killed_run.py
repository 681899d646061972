"""An openforgerl command that is killed by SIGKILL at one moment of its run: `killed_run.py MOMENT WORD...`.

The moment (see `Moment`) comes as JSON; null for a run that nobody kills. The signal is sent from inside, so that no
load of the machine makes it miss its phase.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TextIO

GRADED = "killed_run.graded"
"""The audit event that the test's grader raises for every grade."""
_WRITTEN = re.compile(r"/run/(checkpoints|state|progress|metrics)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A line with `begin`, then `events` more grades and writes of a commit, then `delay_s`; at the latest the next
    line with `end`."""

    phase: str
    begin: str
    end: str
    delay_s: float
    events: int = 0


class Killer:
    """Sees the lines of stderr and Python's audit events; kills this process at its moment."""

    def __init__(self, moment: Moment, stderr: TextIO) -> None:
        self._moment = moment
        self._stderr = stderr
        self._left: int | None = None

    def write(self, text: str) -> int:
        written = self._stderr.write(text)
        if self._left is None:
            if re.search(self._moment.begin, text):
                self._left = self._moment.events
                self._check()
        elif re.search(self._moment.end, text):
            self._stderr.flush()
            self._kill()
        return written

    def flush(self) -> None:
        self._stderr.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stderr.fileno()

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._left and (event == GRADED or _writes(event, arguments)):
            self._left -= 1
            self._check()

    def _check(self) -> None:
        if self._left == 0:
            threading.Thread(target=self._kill_later, daemon=True).start()

    def _kill_later(self) -> None:
        time.sleep(self._moment.delay_s)
        self._kill()

    def _kill(self) -> None:
        os.write(2, f"killed in {self._moment.phase}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def _writes(event: str, arguments: tuple[object, ...]) -> bool:
    if event not in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree"):
        return False
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return False
    return _WRITTEN.search(str(arguments[0])) is not None


def main() -> int:
    described = json.loads(sys.argv[1])
    if described is not None:
        killer = Killer(Moment(**described), sys.stderr)
        sys.stderr = killer  # type: ignore[assignment]
        sys.addaudithook(killer.audit)
    from openforgerl.cli.main import main as openforgerl

    return openforgerl(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
