"""kill -9 of a training run at random moments, each followed by --resume: nothing is counted twice, nothing is left."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from openforgerl.store.sqlite import Store
from openforgerl.workflows.run_folder import RunFolder
from openforgerl.workflows.verify import verify

ROOT = Path(__file__).parents[2]
SFT_STEPS, GROUPS, SIZE = 2, 2, 2
STEPS = {"react": 10, "pi": 5}

COIN = '''
import random
from openforgerl.graders.tests import TestsGrader
from openforgerl.records import Grade

class Coin:
    """The task's own grade where it is 1; else a coin, so that groups of a random model have variance."""
    name = "coin"

    async def grade(self, task, sandbox):
        grade = await TestsGrader().grade(task, sandbox)
        return grade if grade.reward else Grade(kind="reward", reward=float(random.random() < 0.5))
'''

CONFIG = """
[model]
path = "model"
[harness]
name = "HARNESS"
[tasks]
train = "train"
heldout = "heldout"
grader = "coin:Coin"
[runtime]
root = "BOXES"
[rollout]
concurrency = 4
deadline_s = 30
max_tokens = 64
[proxy]
max_calls_per_session = 2
[trainer]
lr = 1e-4
[trainer.sft]
steps = 2
rollouts_per_step = 2
[trainer.grpo]
steps = STEPS
groups_per_step = 2
group_size = 2
[evaluation]
samples_per_task = 1
"""


@pytest.fixture(params=["react", "pi"])
def harness(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(tmp_path: Path, harness: str) -> Path:
    """A folder with a tiny random model, two training tasks, a held-out one, a grader of the user's own."""
    torch.manual_seed(0)
    fixture = ROOT / "tests" / "fixtures" / "tiny-chatml"
    vocabulary = json.loads((fixture / "tokenizer.json").read_text())["model"]["vocab"]
    config = LlamaConfig(
        vocab_size=len(vocabulary) + 8, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    for file in fixture.iterdir():
        shutil.copy(file, tmp_path / "model" / file.name)
    examples = ROOT / "examples" / "shell_tasks"
    for split, count in (("train", 2), ("heldout", 1)):
        for task in sorted((examples / split).iterdir())[:count]:
            shutil.copytree(task, tmp_path / split / task.name)
    (tmp_path / "coin.py").write_text(COIN)
    settings = CONFIG.replace("BOXES", str(tmp_path / "boxes")).replace("HARNESS", harness)
    (tmp_path / "train.toml").write_text(settings.replace("STEPS", str(STEPS[harness])))
    return tmp_path


def openforgerl(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from openforgerl.cli.main import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=60)


def start(world: Path, *, resume: bool) -> subprocess.Popen[str]:
    code = "import sys; from openforgerl.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "train", str(world / "train.toml"), "--run", str(world / "run")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    log = (world / "stderr.txt").open("a")
    return subprocess.Popen(
        command + ["--resume"] * resume, stdout=subprocess.PIPE, stderr=log, text=True, env=env, cwd=world
    )


def processes_of(world: Path) -> list[str]:
    """Command lines that still name this test's folder, zombies aside."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(world) in command:
                found.append(command)
    return found


def wait_for_silence(world: Path) -> list[str]:
    deadline = time.monotonic() + 5.0
    while (left := processes_of(world)) and time.monotonic() < deadline:
        os.sched_yield()
    return left


def moments(rng: random.Random, steps: int) -> list[str]:
    """Five beginnings of lines that a run prints: a kill follows each, a moment later."""
    early = ["held-out, base", rng.choice(["demonstrations", "sft 1", "held-out, after sft"])]
    return early + [f"grpo {step}/" for step in sorted(rng.sample(range(1, steps), 3))]


def wait_for_line(world: Path, process: subprocess.Popen[str], start: str, behind: int) -> None:
    """Until a line that begins with `start` stands behind the first `behind` characters of what runs have said."""
    deadline = time.monotonic() + 90.0
    while not any(line.startswith(start) or f"  {start}" in line for line in said(world)[behind:].splitlines()):
        assert process.poll() is None, f"the run ended before {start!r}: {said(world)}"
        assert time.monotonic() < deadline, f"no {start!r}: {said(world)}"
        time.sleep(0.01)


def said(world: Path) -> str:
    return (world / "stderr.txt").read_text()


def test_a_run_that_is_killed_five_times_ends_as_if_it_had_not_been(world: Path, harness: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number, moment in enumerate(moments(rng, STEPS[harness])):
        behind = len(said(world)) if number else 0
        process = start(world, resume=number > 0)
        wait_for_line(world, process, moment, behind)
        time.sleep(rng.uniform(0.0, 0.7))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, f"the run ended before it was killed in {moment!r}"
        assert wait_for_silence(world) == []
        checked = openforgerl("verify", str(world / "run"))
        assert checked.returncode == 0 or "nothing is recorded yet" in checked.stderr
    last = start(world, resume=True)
    out, _ = last.communicate(timeout=240)
    assert last.returncode == 0, said(world)
    check(world, json.loads(out.splitlines()[-1]), STEPS[harness])


def check(world: Path, summary: dict[str, dict[str, float]], steps: int) -> None:
    run = RunFolder(world / "run")
    progress = run.read_progress()
    assert (progress.sft_steps, progress.grpo_steps) == (SFT_STEPS, steps)
    names = [str(entry["name"]) for entry in progress.metrics]
    assert names == [f"sft {n + 1}" for n in range(SFT_STEPS)] + [f"grpo {n + 1}" for n in range(steps)]
    updates = sum("loss" in entry for entry in progress.metrics)
    assert progress.policy_version == updates == optimizer_step(run.state(progress.policy_version))
    store = Store.open(run.store, read_only=True)
    sessions, uses = store.sessions(), {use.session_id: use for use in store.read_uses()}
    verdict = verify(store)
    store.close()
    assert verdict.findings == ()
    counted = Counter(
        session.rollout_id
        for session in sessions
        if uses[session.session_id].reason not in ("infra", "superseded", "not_solved")
    )
    assert set(counted.values()) == {1}
    assert len(counted) == 3 + 2 + steps * GROUPS * SIZE
    assert summary["heldout"].keys() == {"base", "after_sft", "after_rl"}
    assert processes_of(world) == []
    assert list((world / "boxes").glob("*/*")) == []
    assert not re.search(str(world / "boxes"), Path("/proc/self/mountinfo").read_text())
    assert list((run.root / "tensorboard").glob("events.*"))
    assert [folder.name for folder in (run.root / "state").iterdir()] == [f"v{progress.policy_version}"]


def optimizer_step(state: Path) -> int:
    facts = next(state.glob("*.json"))
    step: int = json.loads(facts.read_text())["step"]
    return step
