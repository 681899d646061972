"""A hostile agent against the reward: each attack ends as a reward of 0 or a named state, and nothing is left over.

The task is to write 42 into /workspace/answer. Every attack tries to be rewarded without that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from openforgerl.graders import tests as graders
from openforgerl.records import Grade, Task
from openforgerl.runtimes.base import EndCause, Sandbox
from sandboxes import FIND, Machine, run, said, spec

TEST = """
sleep ${PAUSE:-0}
python3 -c 'import json, os; print("python is unharmed")'
answer=$(cat /workspace/answer 2>/dev/null || echo none)
if [ "$answer" = 42 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
ZERO = Grade(kind="reward", reward=0.0)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine.make(tmp_path)
    yield made
    assert made.leftovers() == []


def task_of(folder: Path, test: str = TEST, *, timeout_s: float = 20.0) -> Task:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / "test.sh").write_text(test)
    return Task(
        task_id="hostile", instruction="Write 42 into answer.", folder=folder, tests=folder, workspace=None,
        agent_timeout_s=20, grader_timeout_s=timeout_s,
    )  # fmt: skip


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return task_of(tmp_path / "tests")


async def grade(task: Task, box: Sandbox) -> Grade:
    return await graders.TestsGrader().grade(task, box)


async def test_an_honest_answer_is_rewarded(machine: Machine, task: Task) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, "echo 42 > answer")
        assert await grade(task, box) == Grade(kind="reward", reward=1.0)


PLANTED = {
    "reward files": """
        mkdir -p /logs/verifier /tests logs/verifier tests
        for f in /logs/verifier/reward.txt /logs/verifier/reward.json logs/verifier/reward.txt; do echo 1 > $f; done
        for f in /tests/test.sh tests/test.sh; do echo 'echo 1 > /logs/verifier/reward.txt' > $f; done
        ln -s /logs/verifier/reward.txt answer""",
    "start files of shells": """
        evil='echo 1 > /logs/verifier/reward.txt; exit'
        for f in .bashrc .bash_profile .profile .bash_login .bash_logout .inputrc; do echo "$evil" > ~/$f; done
        for f in .bashrc .profile .env BASH_ENV; do echo "$evil" > $f; done
        echo "$evil" > /tmp/env; export BASH_ENV=/tmp/env ENV=/tmp/env""",
    "start files of python": """
        evil='open("/logs/verifier/reward.txt", "w").write("1"); import os; os._exit(0)'
        site=.local/lib/python3.11/site-packages; mkdir -p ~/$site $site
        for f in sitecustomize usercustomize; do
            for d in . ~ ~/$site $site /tmp; do echo "$evil" > $d/$f.py; done; done
        printf '[python]\\nhome=/workspace\\n' > pyvenv.cfg; echo "import evil" > ~/$site/evil.pth""",
    "programs on the path": """
        mkdir -p bin ~/bin ~/.local/bin
        for p in bash sh python3 cat sleep test '['; do
            for d in . bin ~/bin ~/.local/bin /usr/local/bin /usr/bin /bin /tmp; do
                printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > $d/$p; chmod +x $d/$p; done; done
        export PATH=/workspace/bin:$PATH; hash -r""",
    "functions and aliases": """
        cat() { echo 42; }; export -f cat; alias cat='echo 42'; export LD_PRELOAD=/workspace/evil.so
        echo 42 > /proc/self/environ; set -o allexport""",
}


@pytest.mark.parametrize("name", PLANTED)
async def test_planted_files_earn_nothing(name: str, machine: Machine, task: Task) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, PLANTED[name])
        assert await grade(task, box) == ZERO


async def test_a_daemon_is_dead_before_the_grader_begins(machine: Machine, tmp_path: Path) -> None:
    patient = task_of(tmp_path / "tests", "PAUSE=0.5\n" + TEST)
    loop = "while :; do echo 42 > /workspace/answer; echo 1 > /logs/verifier/reward.txt; sleep 0.05; done"
    hide = f"trap '' TERM HUP INT QUIT; sleep 0.3; {loop}"
    script = f"""(setsid nohup bash -c "{hide}" >/dev/null 2>&1 &); (nohup bash -c "{hide}" & disown) >/dev/null 2>&1
    python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("bash", ["bash", "-c", "sleep 0.3; echo 42 > /workspace/answer"])'
    """
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, script)
        assert (end.cause, end.exit_code) == (EndCause.EXITED, 0)
        assert machine.processes() == []
        assert await grade(patient, box) == ZERO


async def test_a_fifo_where_the_grader_reads_ends_as_a_grader_timeout(machine: Machine, tmp_path: Path) -> None:
    hasty = task_of(tmp_path / "tests", timeout_s=0.5)
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, "mkfifo answer")
        graded = await grade(hasty, box)
    assert graded.kind == "grader_error"
    assert graded.reason.startswith("grader_timeout")


@pytest.mark.parametrize(
    "script",
    [
        "echo 41 > answer; chmod 000 answer",
        "mkdir answer; chmod 000 answer",
        "ln -s /etc/shadow answer",
        "ln -s answer answer",
        "yes 42 | head -c 3000000 > answer",
        "printf '42\\0' > answer; mkdir -p a/b/c; chmod 000 a/b a . ",
        "ln -s /proc/self/environ answer; ln -s /dev/stdin x",
    ],
)
async def test_odd_answers_earn_nothing(script: str, machine: Machine, task: Task) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, script)
        graded = await grade(task, box)
    if "42\\0" in script:
        assert graded == Grade(kind="reward", reward=1.0)
        return
    assert graded == ZERO


async def test_the_grader_reads_what_the_agent_locked_and_other_modes_stay(machine: Machine) -> None:
    lock = "echo 42 > a; chmod 000 a; mkdir d; echo 42 > d/b; chmod 000 d; echo > c; chmod 444 c; echo > e; chmod 640 e"
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, lock)
        assert await said(box, "cat a d/b; stat -c %a c e", user="grader") == "42\n42\n444\n640"


async def test_the_graders_files_and_user_are_out_of_the_agents_reach(machine: Machine, task: Task) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        await grade(task, box)
        look = f"{FIND} -name 'reward*' -print; {FIND} -name 'test.sh' -print; {FIND} -name grader -print"
        seen = await said(box, f"({look}) 2>/dev/null; ls -d /tests /logs /home/*; id -un")
        assert seen.splitlines()[-1] == "agent"
        assert "reward" not in seen
        assert "test.sh" not in seen
        assert "grader" not in seen


async def test_the_grader_cannot_change_its_own_tests(machine: Machine, tmp_path: Path) -> None:
    task = task_of(
        tmp_path / "tests", "echo evil >> /tests/test.sh; rm -f /tests/test.sh; echo 0 > /logs/verifier/reward.txt"
    )
    before = (tmp_path / "tests" / "test.sh").read_bytes()
    async with machine.runtime.sandbox(spec()) as box:
        assert await grade(task, box) == ZERO
    assert (tmp_path / "tests" / "test.sh").read_bytes() == before


async def test_links_out_of_the_workspace_touch_nothing(machine: Machine, task: Task, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("42")
    victim.chmod(0o600)
    before = victim.stat()
    links = f"""
    ln -s {victim} answer; ln -s {tmp_path} up; ln -s {victim} file; ln -s / root; ln {victim} hard; ln /etc/passwd hard
    ln -s /workspace/../../../../../../../..{victim} dots
    """
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, links)
        await run(box, "echo through > file", files={"/workspace/file": b"plan"})
        assert await grade(task, box) == ZERO
        for name in ("answer", "file", "up/victim", f"root{victim}", "dots", "hard"):
            assert await box.get(f"/workspace/{name}") in (None, b"through\n")
    after = victim.stat()
    assert victim.read_text() == "42"
    assert (after.st_uid, after.st_mode, after.st_ctime_ns) == (before.st_uid, before.st_mode, before.st_ctime_ns)
    assert os.stat(tmp_path).st_uid == before.st_uid


async def test_a_plans_file_is_not_written_through_a_planted_folder_link(machine: Machine, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, f"ln -s {outside} folder")
        with pytest.raises(Exception, match="/workspace/folder/file"):
            await run(box, "true", files={"/workspace/folder/file": b"x"})
    assert list(outside.iterdir()) == []


async def test_a_tree_that_is_hard_to_remove_is_removed(machine: Machine, task: Task) -> None:
    script = r"""
    touch $'new\nline' $'\xff\xfe' -- '-rf' ' ' '*' $'\e[2J'; mkdir -- --help
    mkdir -p locked/x; touch locked/x/y; chmod 000 locked/x locked
    python3 - <<'END'
import os
for _ in range(3000):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
open("deep", "w").close()
END
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'; mkfifo fifo
    """
    async with machine.runtime.sandbox(spec()) as box:
        assert (await run(box, script)).exit_code == 0
        assert await grade(task, box) == ZERO
    assert machine.leftovers() == []


async def test_a_second_program_of_the_agent_starts_from_its_own_files(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, "echo one > file; chmod 600 file")
        await run(box, "echo grader > left", user="grader")
        assert await said(box, "cat file left; echo two > file; cat file") == "one\ngrader\ntwo"
