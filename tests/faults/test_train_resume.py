"""kill -9 of a training run at random moments, each followed by --resume: nothing is counted twice, nothing is left."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from killed_run import Moment
from leftovers import leftovers, outlasting, processes
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from openforgerl.store.sqlite import Store
from openforgerl.workflows.run_folder import RunFolder
from openforgerl.workflows.verify import verify

ROOT = Path(__file__).parents[2]
SFT_STEPS, GROUPS, SIZE = 3, 2, 2
STEPS = {"react": 5, "pi": 3}
"""Of GRPO. Two kills fall into it; the step of each may be committed, one at least is left."""
PHASE_S = {"react": 0.5, "pi": 2.5}
"""About what the rollouts of a step of GRPO take; a kill comes within as long from their begin."""
UNUSED = ("infra", "superseded", "not_solved")
PROGRAM = Path(__file__).with_name("killed_run.py")

GRADER = '''
import random
import sys
from openforgerl.graders.tests import TestsGrader
from openforgerl.records import Grade

class Chance:
    """The task's own grade where it is 1; else chance, so that every group of a random model has variance."""
    name = "chance"

    async def grade(self, task, sandbox):
        grade = await TestsGrader().grade(task, sandbox)
        sys.audit("killed_run.graded")
        return grade if grade.reward else Grade(kind="reward", reward=random.random())
'''

CONFIG = """
[model]
path = "model"
[harness]
name = "HARNESS"
[tasks]
train = "train"
heldout = "heldout"
grader = "chance:Chance"
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
steps = 3
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
    (tmp_path / "tmp").mkdir()
    (tmp_path / "chance.py").write_text(GRADER)
    settings = CONFIG.replace("BOXES", str(tmp_path / "boxes")).replace("HARNESS", harness)
    (tmp_path / "train.toml").write_text(settings.replace("STEPS", str(STEPS[harness])))
    return tmp_path


def moments(rng: random.Random, harness: str) -> list[Moment]:
    """Five, in the order in which a run comes by: each phase of the loop has one."""
    rollouts_s, steps = PHASE_S[harness], STEPS[harness]
    step, own = r"grpo \d/", r"  grpo \d "
    first = rf"grpo {rng.randint(1, steps - 2)}/"
    early = [
        Moment(phase="base", begin="held-out, base", end="heldout base", delay_s=rng.uniform(0, rollouts_s / 2)),
        Moment(phase="demonstrations", begin="demonstrations", end="sft 1", delay_s=rng.uniform(0, rollouts_s / 2)),
        Moment(phase="sft", begin=r"sft \d", end=r"sft \d|held-out, after", delay_s=rng.uniform(0, rollouts_s / 8)),
    ]
    writes = GROUPS * SIZE + rng.randint(0, 20)
    late = [
        Moment(phase="rollouts", begin=step, end=own, delay_s=rng.uniform(0, rollouts_s)),
        Moment(phase="commit", begin=step, end=own, events=writes, delay_s=rng.uniform(0, 0.01)),
    ]
    one, other = rng.sample(late, 2)
    return [*early, replace(one, begin=first), other]


def start(world: Path, moment: Moment | None, *, resume: bool) -> subprocess.Popen[str]:
    told = json.dumps(moment and asdict(moment))
    command = [sys.executable, str(PROGRAM), told, "train", str(world / "train.toml"), "--run", str(world / "run")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TMPDIR": str(world / "tmp")}
    with (world / "stderr.txt").open("a") as log, (world / "stdout.txt").open("a") as out:
        return subprocess.Popen(command + ["--resume"] * resume, stdout=out, stderr=log, text=True, env=env, cwd=world)


def to_its_end(world: Path, process: subprocess.Popen[str], seen: set[str]) -> int:
    """The exit code; notes on the way which processes of the run `leftovers` sees."""
    ends = time.monotonic() + 120.0
    while process.poll() is None:
        assert time.monotonic() < ends, f"the run does not end: {said(world)}"
        seen.update(processes(world))
        time.sleep(0.1)
    return process.returncode


def said(world: Path) -> str:
    return (world / "stderr.txt").read_text()


@pytest.fixture
def seed() -> int:
    """OPENFORGERL_TEST_SEED repeats a failure."""
    return int(os.environ.get("OPENFORGERL_TEST_SEED") or random.randrange(10**6))


def test_a_run_that_is_killed_five_times_ends_as_if_it_had_not_been(world: Path, harness: str, seed: int) -> None:
    print(f"OPENFORGERL_TEST_SEED={seed}")
    seen: set[str] = set()
    for number, moment in enumerate(moments(random.Random(seed), harness)):
        print(moment)
        process = start(world, moment, resume=number > 0)
        try:
            code = to_its_end(world, process, seen)
        finally:
            process.kill()
            process.wait()
        assert code == -signal.SIGKILL, f"not killed in {moment}: {said(world)}"
        assert said(world).endswith(f"killed in {moment.phase}\n")
        assert outlasting(world) == []
        check_on_the_way(world)
    assert said(world).count("killed in ") == 5
    last = start(world, None, resume=True)
    try:
        assert to_its_end(world, last, seen) == 0, said(world)
    finally:
        last.kill()
        last.wait()
    check_end(world, STEPS[harness])
    assert leftovers(world, world / "boxes", world / "tmp") == []
    for program in ("bwrap", "/opt/node/bin/node") if harness == "pi" else ("bwrap",):
        assert any(program in command for command in seen), f"the search for processes is blind: {seen}"


def check_on_the_way(world: Path) -> None:
    run = RunFolder(world / "run")
    progress = run.read_progress()
    assert progress.policy_version == progress.sft_steps + progress.grpo_steps
    if progress.policy_version:
        assert recorded_step(run.state(progress.policy_version)) == progress.policy_version
    store = Store.open(run.store, read_only=True)
    assert verify(store, settled_only=True).findings == ()
    assert set(times_counted(store).values()) <= {1}
    store.close()


def check_end(world: Path, steps: int) -> None:
    run = RunFolder(world / "run")
    progress = run.read_progress()
    assert (progress.sft_steps, progress.grpo_steps) == (SFT_STEPS, steps)
    names = [str(entry["name"]) for entry in progress.metrics]
    assert names == [f"sft {n + 1}" for n in range(SFT_STEPS)] + [f"grpo {n + 1}" for n in range(steps)]
    assert progress.policy_version == recorded_step(run.state(progress.policy_version)) == SFT_STEPS + steps
    assert moment_steps(run.state(progress.policy_version)) == {steps}
    store = Store.open(run.store, read_only=True)
    assert {use.session_id for use in store.read_uses()} == {session.session_id for session in store.sessions()}
    assert verify(store).findings == ()
    counted = times_counted(store)
    store.close()
    assert set(counted.values()) == {1}
    assert len(counted) == 3 + 2 + steps * GROUPS * SIZE
    summary = json.loads((world / "stdout.txt").read_text().splitlines()[-1])
    assert summary["heldout"].keys() == {"base", "after_sft", "after_rl"}
    assert list((run.root / "tensorboard").glob("events.*"))
    assert [folder.name for folder in (run.root / "state").iterdir()] == [f"v{progress.policy_version}"]


def times_counted(store: Store) -> Counter[str]:
    """Of each rollout: how often a step has used it. Steps of the warm start may draw one demonstration again."""
    used = {
        (use.session_id, use.phase, use.step if use.phase != "sft" else 0)
        for use in store.read_uses()
        if use.reason not in UNUSED
    }
    rollouts = {session.session_id: session.rollout_id for session in store.sessions()}
    return Counter(rollouts[session_id] for session_id, _, _ in used)


def recorded_step(state: Path) -> int:
    step: int = json.loads((state / "state.json").read_text())["step"]
    return step


def moment_steps(state: Path) -> set[int]:
    """How often AdamW has stepped each parameter since its phase began, as its own state counts."""
    tensors = load_file(state / "state.safetensors")
    return {int(value) for name, value in tensors.items() if name.startswith("step/")}
