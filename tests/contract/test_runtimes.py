"""The runtime contract, run on every member: a new runtime is tested by naming it in `machine`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openforgerl.errors import SandboxError
from openforgerl.records import LaunchPlan
from openforgerl.runtimes.base import EndCause
from sandboxes import AS_ROOT, RUN_ID, Machine, bash, connect, echo_proxy, run, said, spec

CLIENT = """
import os, socket, sys, urllib.parse
url = urllib.parse.urlsplit(os.environ["URL"])
with socket.create_connection((url.hostname, url.port)) as conn:
    conn.sendall(b"x" * int(os.environ.get("SIZE", "5")))
    conn.shutdown(socket.SHUT_WR)
    data = b""
    while part := conn.recv(65536):
        data += part
print(data[:6].decode(), len(data))
"""


@pytest.fixture(params=["bubblewrap", "unsafe"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    made = Machine.make(tmp_path, unsafe=request.param == "unsafe")
    yield made
    assert made.leftovers() == []


def isolated(machine: Machine) -> bool:
    return "unsafe" not in machine.runtime.isolation


async def test_a_program_ends_with_its_exit_code_and_its_output_in_order(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, "echo one; echo two >&2; printf '\\xff'; exit 3")
    assert (end.cause, end.exit_code, end.signal) == (EndCause.EXITED, 3, None)
    assert (end.output, end.output_dropped) == (b"one\ntwo\n\xff", 0)
    assert 0 < end.duration_s < 20


async def test_a_signal_is_told_from_an_exit_code(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, "kill -TERM $$")
    assert (end.cause, end.exit_code, end.signal) == (EndCause.EXITED, None, signal.SIGTERM)


async def test_a_program_that_does_not_exist_is_named(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        end = await box.run(LaunchPlan(argv=("/nowhere/program",)), user="agent")
    assert end.exit_code == 127
    assert b"/nowhere/program" in end.output


async def test_programs_start_in_the_workspace_with_a_copy_of_its_files(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_text("content")
    (source / "script").write_text("")
    (source / "script").chmod(0o755)
    async with machine.runtime.sandbox(spec(workspace=source)) as box:
        end = await run(box, "cat folder/file && test -x script && echo changed > folder/file && rm script && pwd -P")
        assert end.output.startswith(b"content/")
        assert end.output.endswith(b"/workspace\n")
        assert await box.get("/workspace/folder/file") == b"changed\n"
        assert await said(box, "ls; cat folder/file") == "folder\nchanged"
    assert (source / "folder" / "file").read_text() == "content"
    assert (source / "script").exists()


async def test_a_workspace_that_is_missing_is_infrastructure(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="nowhere"):
        async with machine.runtime.sandbox(spec(workspace=tmp_path / "nowhere")):
            pass


async def test_the_environment_is_only_what_the_plan_gives(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("OWNERS_SECRET", "hidden")
    async with machine.runtime.sandbox(spec()) as box:
        names = await said(box, "env | cut -d= -f1", env={"ONE": "1\n2", "KEY": "sk-abc"})
    shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    extra = {"TMPDIR", "OPENFORGERL_SANDBOX"} if not isolated(machine) else set()
    assert set(names.split()) - {"2"} - shell - extra == {"PATH", "HOME", "ONE", "KEY"}


async def test_the_plans_files_belong_to_the_user_that_runs_and_to_nobody_else(machine: Machine) -> None:
    files = {"/home/agent/.config/tool/key": b"secret", "/workspace/a/b": b"\x00\xff", "/tmp/c": b"c"}
    script = "cat ~/.config/tool/key; for f in ~/.config/tool/key a/b /tmp/c; do stat -c ' %a %u' $f; done; id -u; "
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, script + "echo > ~/.config/tool/other", files=files)
        assert await box.get("/workspace/a/b") == b"\x00\xff"
    uid = end.output.split()[-1]
    assert end.output.split() == [b"secret", *[b"600", uid] * 3, uid]
    assert end.exit_code == 0


async def test_mounts_are_read_where_they_are_named(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "tool"
    source.mkdir()
    (source / "data").write_text("from the mount")
    source.chmod(0o755)
    async with machine.runtime.sandbox(spec()) as box:
        text = await said(box, "cat /opt/tools/mine/data", mounts={"/opt/tools/mine": source})
        assert text == "from the mount"
        if isolated(machine):
            end = await run(box, "echo > /opt/tools/mine/data", mounts={"/opt/tools/mine": source})
            assert b"Read-only" in end.output
        with pytest.raises(SandboxError, match="/opt/none"):
            await run(box, "true", mounts={"/opt/none": tmp_path / "none"})


async def test_of_a_long_output_the_head_and_the_tail_stay(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, "echo first; head -c 3000000 /dev/zero; echo last", output_cap_bytes=1000)
    assert len(end.output) == 1000
    assert end.output.startswith(b"first\n\0")
    assert end.output.endswith(b"\0last\n")
    assert end.output_dropped == 6 + 3_000_000 + 5 - 1000


async def test_a_background_child_that_holds_the_output_delays_nothing_and_dies(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        started = time.monotonic()
        end = await run(box, "sleep 60 & echo ready")
        assert (end.cause, end.exit_code, end.output) == (EndCause.EXITED, 0, b"ready\n")
        assert time.monotonic() - started < 5
        assert machine.processes() == []


async def test_the_deadline_kills_the_whole_tree(machine: Machine) -> None:
    daemon = "(setsid nohup bash -c 'trap \"\" TERM HUP INT; sleep 60 & sleep 60' >/dev/null 2>&1 &)"
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, f"{daemon}; trap '' TERM; echo begun; sleep 60", deadline_s=0.4)
        assert machine.processes() == []
    assert (end.cause, end.exit_code, end.signal) == (EndCause.DEADLINE, None, signal.SIGKILL)
    assert end.output == b"begun\n"
    assert end.duration_s < 5


async def test_a_step_of_the_wall_clock_moves_no_deadline(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    async with machine.runtime.sandbox(spec()) as box:
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3600)
        assert (await run(box, "sleep 0.1", deadline_s=10)).cause is EndCause.EXITED
        monkeypatch.setattr(time, "time", lambda: now - 3600)
        assert (await run(box, "sleep 60", deadline_s=0.3)).cause is EndCause.DEADLINE


async def test_cancelling_kills_the_tree_and_removes_the_sandbox(machine: Machine) -> None:
    async def rollout(address: tuple[str, int]) -> None:
        async with machine.runtime.sandbox(spec(proxy_address=address)) as box:
            await run(box, f"(setsid sleep 60 &); {connect(box)}; sleep 60")

    async with echo_proxy() as proxy:
        task = asyncio.create_task(rollout(proxy.address))
        await proxy.connected.wait()
        assert machine.processes() != []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert machine.leftovers() == []


@pytest.mark.parametrize("steps", range(6))
async def test_cancelling_at_any_moment_leaves_nothing(machine: Machine, steps: int) -> None:
    async def rollout() -> None:
        async with machine.runtime.sandbox(spec()) as box:
            await run(box, "true")

    task = asyncio.create_task(rollout())
    for _ in range(steps * 3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert machine.leftovers() == []


async def test_the_proxy_is_reached_at_its_url_with_half_close_both_ways(machine: Machine) -> None:
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
        plan = LaunchPlan(
            argv=("/usr/bin/python3", "-I", "-c", CLIENT), env={"URL": box.proxy_url, "SIZE": "3000000"}
        )  # fmt: skip
        end = await box.run(plan, user="agent")
    assert end.output == b"proxy: 3000006\n"


async def test_many_sandboxes_at_once_reach_the_proxy_each_on_its_own(machine: Machine) -> None:
    async def one(number: int, address: tuple[str, int]) -> bytes:
        async with machine.runtime.sandbox(spec(f"session-{number}", proxy_address=address)) as box:
            env = {"URL": box.proxy_url, "SIZE": str(number)}
            return (
                await box.run(LaunchPlan(argv=("/usr/bin/python3", "-I", "-c", CLIENT), env=env), user="agent")
            ).output

    async with echo_proxy() as proxy:
        outputs = await asyncio.gather(*(one(number, proxy.address) for number in range(8)))
    assert outputs == [f"proxy: {6 + number}\n".encode() for number in range(8)]


async def test_without_a_proxy_there_is_no_url(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        assert box.proxy_url == ""


async def test_the_grader_sees_the_workspace_and_its_mounts_and_leaves_its_logs(
    machine: Machine, tmp_path: Path
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir(mode=0o755)
    (tests / "test.sh").write_text("grep -q 42 /workspace/answer && echo 1 > /logs/verifier/reward.txt\n")
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, "umask 077; echo 42 > answer")
        end = await box.run(LaunchPlan(argv=("/bin/bash", "/tests/test.sh"), mounts={"/tests": tests}), user="grader")
        assert end.exit_code == 0, end.output
        assert await box.get("/logs/verifier/reward.txt") == b"1\n"
        await run(box, "true", user="grader")
        assert await box.get("/logs/verifier/reward.txt") is None


async def test_home_and_tmp_do_not_outlive_a_program(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        tmp = "/tmp" if isolated(machine) else "$TMPDIR"
        await run(box, f"echo planted > ~/.bashrc; echo planted > {tmp}/file; echo kept > file")
        for user in ("agent", "grader"):
            listing = await said(box, f"ls -A ~ {tmp}; cat file", user=user)
            assert "bashrc" not in listing
            assert "kept" in listing
            assert listing.count("file") == 0


async def test_get_gives_regular_files_of_the_sandbox_only(machine: Machine, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    script = f"""
    echo -n good > good; mkdir folder; echo -n deep > folder/deep; head -c 2000 /dev/zero > big
    mkfifo fifo; ln -s good near; ln -s {secret} far; ln -s / root; ln -s {tmp_path} out; ln -s folder inside
    printf odd > $'new\\nline'
    """
    async with machine.runtime.sandbox(spec()) as box:
        await run(box, script)
        assert await box.get("/workspace/good") == b"good"
        assert await box.get("/workspace/folder/deep") == b"deep"
        assert await box.get("/workspace/new\nline") == b"odd"
        assert len(await box.get("/workspace/big") or b"") == 2000
        assert await box.get("/workspace/big", cap_bytes=1999) is None
        refused = ("far", "near", f"root{secret}", "out/secret", "inside/deep", "fifo", "folder", "missing", "",
                   "../owner", "folder/../good", "good/x", "nul\0")  # fmt: skip
        assert [name for name in refused if await box.get(f"/workspace/{name}") is not None] == []
        assert await box.get(str(secret)) is None
        assert await box.get("workspace/good") is None


async def test_one_session_has_one_sandbox_at_a_time(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()):
        with pytest.raises(SandboxError, match="live sandbox"):
            async with machine.runtime.sandbox(spec()):
                pass
    async with machine.runtime.sandbox(spec()) as box:
        assert await said(box, "ls -A") == ""


async def test_programs_of_one_sandbox_run_one_after_the_other(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        step = "echo begin >> log; sleep 0.1; echo end >> log"
        await asyncio.gather(*(box.run(bash(step), user="agent") for _ in range(3)))
        assert await box.get("/workspace/log") == b"begin\nend\n" * 3


async def test_an_error_in_the_body_removes_the_sandbox_and_is_raised(machine: Machine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with machine.runtime.sandbox(spec()):
            raise ZeroDivisionError
    assert machine.leftovers() == []


async def test_a_sweep_spares_what_is_alive(machine: Machine) -> None:
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
        running = asyncio.create_task(run(box, f"{connect(box)}; sleep 0.2; echo unharmed"))
        await proxy.connected.wait()
        assert await machine.runtime.sweep(RUN_ID) == 0
        assert (await running).output == b"unharmed\n"
    assert await machine.runtime.sweep(RUN_ID) == 0


async def test_sandboxes_work_in_an_event_loop_of_any_thread(machine: Machine) -> None:
    async def rollout() -> str:
        async with machine.runtime.sandbox(spec()) as box:
            return await said(box, "(setsid sleep 60 &); echo done")

    assert await asyncio.to_thread(lambda: asyncio.run(rollout())) == "done"


async def test_nothing_stays_open_in_the_owner(machine: Machine) -> None:
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
        await run(box, connect(box))
        before = len(os.listdir("/proc/self/fd"))
        await run(box, f"{connect(box)}; sleep 60", deadline_s=0.2, files={"/tmp/file": b"x"})
        await run(box, "true", user="grader")
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) == before


async def test_only_the_unsafe_member_calls_itself_unsafe(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        uid = await said(box, "id -u")
    if isolated(machine):
        assert "bubblewrap" in machine.runtime.isolation
        assert not AS_ROOT or int(uid) >= machine.first_uid
    else:
        assert machine.runtime.isolation.startswith("unsafe")
