"""Where a GRPO step's time goes: runs a few real steps of the example and prints each part with its share.

python bench/loop.py [--steps 3] [--harness pi] [--config examples/shell_tasks/train.toml] [--run FOLDER]
With --run the figures of that finished run are printed instead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from openforgerl.cli.main import main as openforgerl

ROOT = Path(__file__).parents[1]
PARTS = (
    ("rollout_s", "rollouts (sandbox, harness, engine, grading)"),
    ("receipts_s", "receipts of rows that are not trained"),
    ("update_s", "forward, backward, AdamW"),
    ("save_s", "checkpoint and state"),
)


def main() -> None:
    arguments = parse()
    if arguments.run is not None:
        report(steps_of(arguments.run))
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "bench-loop"
        code = openforgerl(command(arguments, run))
        if code:
            sys.exit(code)
        report(steps_of(run))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--harness", default="pi")
    parser.add_argument("--config", type=Path, default=ROOT / "examples" / "shell_tasks" / "train.toml")
    parser.add_argument("--run", type=Path)
    return parser.parse_args()


def command(arguments: argparse.Namespace, run: Path) -> list[str]:
    """The example with its warm start, few steps, and the smallest evaluations."""
    changes = (
        f"harness.name={arguments.harness}",
        f"trainer.grpo.steps={arguments.steps}",
        "evaluation.samples_per_task=1",
    )
    sets = [word for change in changes for word in ("--set", change)]
    return ["train", str(arguments.config), "--run", str(run), *sets]


def steps_of(run: Path) -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [entry for entry in entries if str(entry["name"]).startswith("grpo")]


def report(steps: Sequence[dict[str, float]]) -> None:
    def mean(name: str) -> float:
        return statistics.fmean(step.get(name, 0.0) for step in steps)

    whole = mean("seconds")
    print(f"\na GRPO step, mean of {len(steps)}: {whole:.1f} s, {mean('rollouts'):.0f} rollouts")
    for name, title in PARTS:
        print(f"  {title:<46} {mean(name):7.1f} s {mean(name) / whole:6.1%}")
    other = whole - sum(mean(name) for name, _ in PARTS)
    print(f"  {'everything else':<46} {other:7.1f} s {other / whole:6.1%}")
    print("within the rollouts:")
    print(f"  {'engine computing':<46} {mean('engine_s'):7.1f} s {mean('engine_s') / whole:6.1%}")
    waiting_s = mean("rollout_s") - mean("engine_s")
    print(f"  {'engine idle: sandboxes, harnesses, graders':<46} {waiting_s:7.1f} s {waiting_s / whole:6.1%}")
    prompt = mean("prefilled_tokens") + mean("reused_tokens")
    rate = mean("sampled_tokens") / max(mean("engine_s"), 1e-9)
    print(f"  sampled {mean('sampled_tokens'):.0f} tokens, {rate:.0f} per engine second; ", end="")
    print(f"{mean('reused_tokens') / max(prompt, 1):.1%} of {prompt:.0f} prompt tokens came from the prefix cache")
    packed = mean("tokens_in_rows") / max(mean("tokens_forwarded"), 1)
    print(
        f"trained {mean('tokens_trained'):.0f} tokens; packing forwards each shared prefix once: {packed:.1f} x fewer"
    )


if __name__ == "__main__":
    main()
