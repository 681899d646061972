"""`openforgerl serve` as a process, over an engine of the user's own beside the config."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A shell's background jobs, and all that they start, ignore SIGINT: tests send it.
_LISTENS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
_MAIN = "import sys; from openforgerl.cli.main import main; sys.exit(main())"
COMMAND = [sys.executable, "-P", "-c", _LISTENS + _MAIN]
ENGINE = """
from openforgerl.engines.scripted import ScriptedEngine
from openforgerl.tokens.codec import Codec

class Parrot:
    @staticmethod
    def load(folder, options):
        return ScriptedEngine(lambda request: options["word"], Codec.load(folder))
"""
CONFIG = """
[model]
path = "model"
[engine]
type = "parrot_engine:Parrot"
options = { word = "hello" }
"""


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENFORGERL_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **extra}


def write_config(folder: Path) -> Path:
    shutil.copytree(ROOT / "tests/fixtures/tiny-chatml", folder / "model")
    (folder / "model" / "config.json").write_text("{}")
    (folder / "parrot_engine.py").write_text(ENGINE)
    (folder / "serve.toml").write_text(CONFIG)
    return folder / "serve.toml"


@dataclass
class Serving:
    process: subprocess.Popen[str]
    url: str
    folder: Path
    said: list[str]

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=30)


def start(config: Path, **extra: str) -> Serving:
    process = subprocess.Popen(
        [*COMMAND, "serve", str(config)],
        cwd=config.parent,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    said = [process.stdout.readline() for _ in range(4)]
    return Serving(process=process, url=said[0].split()[-1], folder=config.parent, said=said)
