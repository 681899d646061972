"""A task's repository that holds its own solution in later commits (SWE-bench#465): the agent gets the present only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from openforgerl.runtimes.process_tree import run_tool
from sandboxes import Machine, said, spec

HIDE = """
set -e
git init -q -b main . ; git config user.name me; git config user.email me@localhost
echo question > file; echo ignored > .gitignore; git add -A; git commit -qm past
echo v2 > file; git commit -qam present
base=$(git rev-parse HEAD)
for where in branch tag reflog remote stash loose note; do
    git checkout -q --detach $base; echo "ANSWER-$where" > file; git commit -qam "ANSWER-$where"
    case $where in
        branch) git branch future ;;
        tag) git tag -a v9 -m ANSWER-message ;;
        remote) git remote add origin /nowhere; git update-ref refs/remotes/origin/main HEAD ;;
        note) git update-ref refs/notes/commits HEAD ;;
        loose) echo ANSWER-blob | git hash-object -w --stdin > /dev/null ;;
    esac
done
git checkout -q main; git reset -q --hard $base; echo ANSWER-stash > file; git stash -q
git pack-refs --all; git repack -adq; echo staged > new; git add new; echo changed > file; echo x > ignored
"""
LOOK = """
git log --all --reflog --oneline; git status --short; git branch -a; git tag; git remote; git stash list
for object in $(git cat-file --batch-all-objects --batch-check='%(objectname)'); do git cat-file -p $object; done
git fsck --full --unreachable 2>&1; grep -rl ANSWER .git; ls .git; git commit -qam next && git log --oneline | wc -l
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["bash", "-c", HIDE], cwd=folder, env=env, check=True)
    return folder


@pytest.mark.parametrize("unsafe", [False, True])
async def test_the_agent_finds_the_present_commit_only(repository: Path, tmp_path: Path, unsafe: bool) -> None:
    machine = Machine.make(tmp_path, unsafe=unsafe)
    env = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a"}
    async with machine.runtime.sandbox(spec(workspace=repository)) as box:
        seen = await said(box, LOOK, env=env)
    assert "ANSWER" not in seen
    lines = seen.splitlines()
    assert lines[0].endswith(" Initial state")
    assert lines[1:4] == ["M  file", "A  new", "* main"] or lines[1:4] == [" M file", "A  new", "* main"]
    assert "v2" in lines
    assert lines[-1] == "2"
    assert machine.leftovers() == []


async def test_a_repository_inside_another_and_an_empty_one_are_cleaned_too(repository: Path, tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    await run_tool("git", "init", "-q", "-b", "main", f"{tmp_path}/outer", deadline_s=10)
    await run_tool("mv", str(repository), f"{tmp_path}/outer/inner", deadline_s=10)
    async with machine.runtime.sandbox(spec(workspace=tmp_path / "outer")) as box:
        seen = await said(box, "git status -s; cd inner; git log --all --format=%s; grep -rl ANSWER .git")
    assert seen == "?? inner/\nInitial state"


async def test_a_detached_head_stays_detached(repository: Path, tmp_path: Path) -> None:
    machine = Machine.make(tmp_path)
    await run_tool("git", "-C", str(repository), "checkout", "-q", "--detach", deadline_s=10)
    async with machine.runtime.sandbox(spec(workspace=repository)) as box:
        seen = await said(box, "git symbolic-ref -q HEAD || echo detached; git rev-list --all HEAD | wc -l")
    assert seen == "detached\n1"
