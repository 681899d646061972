"""Bad input to `openforgerl train`: one line that names the field or the file, exit code 2, no run folder."""

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from openforgerl.cli.claiming import claim
from openforgerl.cli.loading import load_config
from openforgerl.store.lock import FolderLock
from openforgerl.workflows.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-c", "import sys; from openforgerl.cli.main import main; sys.exit(main())"]
EXAMPLE = ROOT / "examples/shell_tasks"


@dataclass
class Bench:
    folder: Path

    def train(self, *overrides: str, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "run.toml").write_text(text)
        sets = [part for override in overrides for part in ("--set", override)]
        return self.call("train", "run.toml", "--run", "out", *sets, **env)

    def call(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [*COMMAND, *arguments]
        known = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENFORGERL_CACHE": str(self.folder / "cache"), **env}
        return subprocess.run(argv, cwd=self.folder, env=known, capture_output=True, text=True, check=False)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    shutil.copytree(ROOT / "tests/fixtures/tiny-chatml", tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    task = next((EXAMPLE / "train").iterdir())
    shutil.copytree(task, tmp_path / "tasks" / "one")
    shutil.copytree(task, tmp_path / "untested" / "one")
    shutil.rmtree(tmp_path / "untested" / "one" / "tests")
    (tmp_path / "empty").mkdir()
    return Bench(tmp_path)


GOOD = ("model.path=model", "tasks.train=tasks", "tasks.heldout=tasks", "harness.name=react")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("rollout.concurency=3", "[rollout] concurency is unknown: did you mean [rollout] concurrency?"),
        ("harness.name=pie", "[harness] name = 'pie' is unknown: did you mean 'pi'?"),
        ("tasks.grader=nobody:Nothing", "[tasks] grader = 'nobody:Nothing': there is no module nobody"),
        ("engine.type=upstream", "[engine] type = 'upstream': only the local engine can be trained"),
        ("tasks.train=none", "[tasks] train: tasks folder none does not exist"),
        ("tasks.train=empty", "[tasks] train: empty holds no task"),
        ("tasks.heldout=untested", "[tasks] heldout: untested/one/tests/test.sh is missing"),
        ("model.path=empty", "[model] path"),
        ("model.template=none.jinja", "chat template none.jinja"),
        ("trainer.lr=0", "[trainer] lr = 0: input should be greater than 0"),
        ("harness.tools=['browser']", "[harness] tools"),
        ("trainer.sft.families=['copy-flie']", "[trainer.sft] families: 'copy-flie' is unknown; the families of"),
        ("trainer.sft.families=[]", "[trainer.sft] families = []: this selects no task"),
        ("proxy.host='192.0.2.1'", "host '192.0.2.1' is reached from other machines: set tls_cert"),
    ],
)
def test_a_wrong_value_is_one_line(bench: Bench, changed: str, said: str) -> None:
    done = bench.train(*GOOD, changed)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert f"--set {changed}: [" in done.stderr or not said.startswith("[")
    assert len(done.stderr.splitlines()) == 1
    assert not (bench.folder / "out").exists()


def test_a_port_in_use_is_one_line_and_no_run_folder(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = bench.train(*GOOD, f"proxy.port={port}")
    assert done.returncode == 2
    assert f"[proxy] port = {port}: cannot listen on 127.0.0.1:{port} (Address already in use)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (bench.folder / "out").exists()


@pytest.mark.parametrize("command", ["verify", "report"])
def test_a_path_that_is_no_run_is_one_line(bench: Bench, command: str) -> None:
    (bench.folder / "file").write_text("")
    for path in ("file", "empty", "nowhere"):
        done = bench.call(command, path)
        assert done.returncode == 2
        assert f"{path} holds no run" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rollout\n", "run.toml is not TOML"),
        ("", "[model] path"),
        ("[model]\npath = 'model'\n", "run.toml: [tasks] train is missing"),
    ],
)
def test_a_wrong_file_is_one_line(bench: Bench, text: str, said: str) -> None:
    done = bench.train(text=text)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_machine_without_bubblewrap_is_told_what_to_install(bench: Bench) -> None:
    (bench.folder / "bin").mkdir()
    done = bench.train(*GOOD, PATH=str(bench.folder / "bin"))
    assert done.returncode == 2
    assert "bubblewrap" in done.stderr
    assert "unsafe" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_that_cannot_be_written_is_one_line(bench: Bench) -> None:
    (bench.folder / "out").write_text("a file, not a folder")
    done = bench.train(*GOOD)
    assert done.returncode == 2
    assert "--run out" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_second_training_on_a_run_is_refused_before_torch_is_loaded(bench: Bench) -> None:
    (bench.folder / "run.toml").write_text("")
    run = RunFolder(bench.folder / "out")
    claim(run, load_config(bench.folder / "run.toml", GOOD), resume=False)
    lock = FolderLock(run.store)
    sets = [part for override in GOOD for part in ("--set", override)]
    done = bench.call("train", "run.toml", "--run", "out", "--resume", *sets, PYTHONPROFILEIMPORTTIME="1")
    lock.close()
    assert done.returncode == 2
    assert f"is open in another process (pid {os.getpid()})" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert re.search(r"\| +openforgerl\.store\.lock$", done.stderr, re.MULTILINE)
