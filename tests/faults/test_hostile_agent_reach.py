"""A hostile agent against everything around it: the machine, its processes, its network, its disk and memory."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openforgerl.records import LaunchPlan
from openforgerl.runtimes.base import EndCause
from sandboxes import AS_ROOT, FIND, Machine, bash, connect, echo_proxy, run, said, spec

TRY = """
import socket, sys
def attempt(label, family, address, kind=socket.SOCK_STREAM):
    try:
        with socket.socket(family, kind) as conn:
            conn.settimeout(1)
            conn.connect(address)
            if kind == socket.SOCK_DGRAM:
                conn.send(b"x")
        print("REACHED", label)
    except OSError as error:
        print("refused", label, error.errno)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine.make(tmp_path, processes=64)
    yield made
    assert made.leftovers() == []


def python(code: str) -> LaunchPlan:
    return LaunchPlan(argv=("/usr/bin/python3", "-I", "-c", code), deadline_s=20)


async def test_no_port_of_the_machine_and_no_network_but_the_proxy_is_reached(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as canary, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0openforgerl-canary-{os.getpid()}")
        abstract.listen()
        own = socket.gethostbyname(socket.gethostname())
        port = canary.getsockname()[1]
        code = (
            TRY
            + f"""
attempt("loopback", socket.AF_INET, ("127.0.0.1", {port}))
attempt("own address", socket.AF_INET, ({own!r}, {port}))
attempt("outside", socket.AF_INET, ("1.1.1.1", 53))
attempt("outside by datagram", socket.AF_INET, ("1.1.1.1", 53), socket.SOCK_DGRAM)
attempt("outside by six", socket.AF_INET6, ("2606:4700:4700::1111", 53))
attempt("abstract", socket.AF_UNIX, "\\0openforgerl-canary-{os.getpid()}")
for cid in (1, 2, 3):
    attempt("virtual machine's host", socket.AF_VSOCK, (cid, 2024))
attempt("raw", socket.AF_INET, ("127.0.0.1", 1), socket.SOCK_RAW)
try:
    socket.getaddrinfo("example.com", 443)
    print("REACHED name server")
except OSError:
    print("refused names")
"""
        )
        async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
            code += f'attempt("proxy by its own port", socket.AF_INET, ("127.0.0.1", {proxy.address[1]}))\n'
            code += 'attempt("PROXY", socket.AF_INET, ("127.0.0.1", 8000))\n'
            lines = (await box.run(python(code), user="agent")).output.decode().splitlines()
    assert [line for line in lines if not line.startswith("refused")] == ["REACHED PROXY"]
    assert len(lines) == 13


async def test_the_grader_reaches_no_proxy(machine: Machine) -> None:
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
        code = TRY + 'attempt("proxy", socket.AF_INET, ("127.0.0.1", 8000))'
        assert (await box.run(python(code), user="agent")).output == b"REACHED proxy\n"
        assert (await box.run(python(code), user="grader")).output.startswith(b"refused proxy")
        assert proxy.connections == 1


async def test_after_its_end_an_agent_calls_nothing(machine: Machine) -> None:
    call = "(exec 8<>/dev/tcp/127.0.0.1/8000) && echo >> /tmp/called"
    late = f"(setsid bash -c 'while sleep 0.02; do {call}; done' >/dev/null 2>&1 &)"
    wait = "touch /tmp/called; until [ $(wc -l < /tmp/called) -ge 2 ]; do sleep 0.02; done"
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
        await run(box, f"{late}; {wait}")
        await asyncio.sleep(0.1)
        at_end = proxy.connections
        assert at_end >= 2
        await asyncio.sleep(0.3)
        assert proxy.connections == at_end


async def test_a_storm_of_connections_is_bounded_and_the_next_one_served(machine: Machine) -> None:
    code = """
import select, socket
held = [socket.create_connection(("127.0.0.1", 8000)) for _ in range(100)]
lost = 0
while closed := select.select(held, [], [], 10 if lost < 36 else 0.5)[0]:
    lost += len(closed)
    held = [conn for conn in held if conn not in closed]
print(len(held), lost)
for conn in held:
    conn.close()
while True:
    with socket.create_connection(("127.0.0.1", 8000)) as conn:
        try:
            conn.sendall(b"hi")
            conn.shutdown(socket.SHUT_WR)
            answer = conn.recv(100)
        except OSError:
            continue
        if answer:
            print(answer.decode())
            break
"""
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
        lines = (await box.run(python(code), user="agent")).output.decode().splitlines()
    assert lines[0] == "64 36"
    assert lines[1] == "proxy:hi"


async def test_a_proxy_that_is_down_is_a_closed_connection(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    code = """
import socket
conn = socket.create_connection(("127.0.0.1", 8000))
try:
    print(conn.recv(1))
except OSError as error:
    print(error)
"""
    async with machine.runtime.sandbox(spec(proxy_address=address)) as box:
        end = await box.run(python(code), user="agent")
    assert end.exit_code == 0
    assert end.duration_s < 5


async def test_other_processes_are_neither_seen_nor_signalled(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWNERS_SECRET", "canary-in-the-environment")
    sleeper = await asyncio.create_subprocess_exec("sleep", "60", env={"CANARY": "canary-in-the-environment"})
    script = f"""
    for p in /proc/[0-9]*; do
        echo $p; cat $p/environ $p/cmdline $p/maps $p/mem 2>/dev/null | tr '\\0' '\\n' | head -c 20000; done
    ls -l /proc/1/root/ /proc/1/cwd/ /proc/1/fd/ 2>&1
    kill -9 {sleeper.pid} {os.getpid()} {os.getppid()} 1; kill -9 -1
    """
    try:
        async with machine.runtime.sandbox(spec()) as box:
            end = await run(box, script)
        assert sleeper.returncode is None
        os.kill(sleeper.pid, 0)
    finally:
        sleeper.kill()
        await sleeper.wait()
    assert b"canary" not in end.output
    assert len([line for line in end.output.splitlines() if line.startswith(b"/proc/")]) < 10
    if AS_ROOT:
        assert b"Permission denied" in end.output


async def test_secrets_are_on_no_command_line_and_not_on_disk(machine: Machine) -> None:
    secret = "sk-hidden-from-everyone"
    env, files = {"OPENAI_API_KEY": secret}, {"/home/agent/.key": secret.encode()}
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec(proxy_address=proxy.address)) as box:
        script = f'{connect(box)}; test "$(cat ~/.key)" = "$OPENAI_API_KEY" && echo same; sleep 0.2'
        running = asyncio.create_task(box.run(bash(script, env=env, files=files), user="agent"))
        await proxy.connected.wait()
        lines = machine.proc_files("cmdline")
        assert len(lines) >= 2
        assert [line for line in lines.values() if secret.encode() in line] == []
        holders = [pid for pid, text in machine.proc_files("environ").items() if secret.encode() in text]
        assert not AS_ROOT or all(os.stat(f"/proc/{pid}").st_uid != 0 for pid in holders)
        assert machine.files_with(secret) == []
        assert (await running).output == b"same\n"


async def test_the_system_is_read_only_and_the_machine_unseen(machine: Machine) -> None:
    script = """
    for f in / /usr /usr/bin /usr/lib /etc /dev /proc/sys/kernel/hostname /home /opt; do
        touch $f/planted 2>/dev/null && echo WROTE $f; echo x 2>/dev/null > $f && echo WROTE $f; done
    for f in /etc/passwd /etc/hosts /etc/resolv.conf; do echo x 2>/dev/null >> $f && echo WROTE $f; done
    for f in /root /work /var /run /mnt /srv /sys /boot /media /etc/shadow /etc/ssl/private /etc/ssh /etc/machine-id; do
        test -e $f && echo SEES $f; done
    hostname; echo done
    """
    async with machine.runtime.sandbox(spec()) as box:
        assert await said(box, script) == "sandbox\ndone"


async def test_no_privilege_is_to_be_had(machine: Machine) -> None:
    script = """
    grep -E '^(Cap(Prm|Eff|Bnd|Amb|Inh)|NoNewPrivs)' /proc/self/status
    cp /bin/bash mybash; chmod 4755 mybash; ./mybash -p -c 'id -u'
    for tool in 'su -c id' 'unshare -U true' 'unshare -r id' 'unshare -n true' 'mount -t tmpfs none /tmp' \
        'chroot / true' 'nsenter -t 1 -m true' 'mknod dev b 259 0' 'chown 0 mybash' \
        'bwrap --unshare-user --bind / / true'; do
        timeout 5 $tool </dev/null >/dev/null 2>&1 && echo GRANTED $tool; done
    id -u
    """
    async with machine.runtime.sandbox(spec()) as box:
        lines = (await said(box, script)).splitlines()
    assert lines[:6] == [f"Cap{name}:\t0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")] + [
        "NoNewPrivs:\t1"
    ]
    assert lines[6] == lines[-1] != "0"
    assert len(lines) == 8 or not AS_ROOT


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the filter knows no other machine")
async def test_system_calls_that_widen_the_attack_are_refused(machine: Machine) -> None:
    numbers = {
        "x86_64": {"unshare": 272, "keyctl": 250, "bpf": 321, "io_uring_setup": 425, "userfaultfd": 323, "clone3": 435},
        "aarch64": {"unshare": 97, "keyctl": 219, "bpf": 280, "io_uring_setup": 425, "userfaultfd": 282, "clone3": 435},
    }[platform.machine()]
    code = f"""
import ctypes, threading, subprocess
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {numbers!r}.items():
    print(name, libc.syscall(number, 0x10000000, 0, 0, 0, 0), ctypes.get_errno())
thread = threading.Thread(target=print, args=("threads work",)); thread.start(); thread.join()
print(subprocess.run(["echo", "children work"], capture_output=True, text=True).stdout.strip())
"""
    async with machine.runtime.sandbox(spec()) as box:
        lines = (await box.run(python(code), user="agent")).output.decode().splitlines()
    refused = [f"{name} -1 {38 if name == 'clone3' else 1}" for name in numbers]
    assert lines == [*refused, "threads work", "children work"]


async def test_a_storm_of_forks_ends_at_the_deadline(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, "storm() { storm & storm; }; storm; sleep 60", deadline_s=1.0, output_cap_bytes=10_000)
        assert machine.processes() == []
        assert end.duration_s < 10
        assert await said(box, "echo still usable") == "still usable"
    assert end.cause in (EndCause.DEADLINE, EndCause.EXITED)


async def test_processes_are_limited_in_number(machine: Machine) -> None:
    code = """
import os, time
count = 0
try:
    while os.fork():
        count += 1
    time.sleep(60)
except BlockingIOError:
    print(count)
"""
    async with machine.runtime.sandbox(spec()) as box:
        count = int((await box.run(python(code), user="agent")).output)
    assert 40 < count < 64


async def test_a_flood_of_output_leaves_the_owner_responsive(machine: Machine) -> None:
    async with machine.runtime.sandbox(spec()) as box:
        flood = asyncio.create_task(run(box, "yes", deadline_s=1.0, output_cap_bytes=1000))
        worst = 0.0
        while not flood.done():
            before = time.monotonic()
            await asyncio.sleep(0.01)
            worst = max(worst, time.monotonic() - before)
    end = flood.result()
    assert (end.cause, len(end.output)) == (EndCause.DEADLINE, 1000)
    assert 1_000_000 < end.output_dropped < 100_000_000
    assert worst < 1.0


async def test_one_file_and_the_scratch_folders_are_limited(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path, file_bytes=1 << 20)
    script = """
    head -c 3000000 /dev/zero > file; echo $?; stat -c %s file
    for d in ~ /tmp /dev/shm; do
        for n in 1 2 3; do head -c 900000 /dev/zero > $d/$n; done; du -s --block-size=1 $d | cut -f1; done
    """
    async with machine.runtime.sandbox(spec()) as box:
        numbers = [int(line) for line in (await said(box, script)).splitlines() if line.isdecimal()]
    assert numbers[:2] == [153, 1 << 20]
    assert all(number <= 1 << 20 for number in numbers[2:])
    assert len(numbers) == 5
    assert machine.leftovers() == []


@pytest.mark.parametrize(
    ("limits", "step"),
    [({"disk_bytes": 20 << 20}, "head -c 4000000 /dev/zero > file$n"), ({"files": 100}, "touch $n.{1,2,3,4,5,6,7,8}")],
)
async def test_an_agent_that_fills_the_disk_is_stopped(limits: dict[str, int], step: str, tmp_path: Path) -> None:
    machine = Machine.make(tmp_path, **limits)
    fill = f"n=0; while :; do {step}; n=$((n+1)); sleep 0.02; done"
    async with machine.runtime.sandbox(spec()) as box:
        end = await run(box, fill, deadline_s=30)
    assert end.cause is EndCause.DISK
    assert end.duration_s < 15
    assert machine.leftovers() == []


async def test_an_agent_that_takes_all_memory_is_stopped(tmp_path: Path) -> None:
    machine = Machine.make(tmp_path, memory_bytes=64 << 20)
    if "memory limit" not in machine.runtime.isolation:
        pytest.skip("no memory cgroup can be made here")
    async with machine.runtime.sandbox(spec()) as box:
        end = await box.run(python("x = b'x' * (200 << 20); print('TOOK IT')"), user="agent")
        assert (end.cause, end.output) == (EndCause.OOM, b"")
        assert await said(box, "echo still usable") == "still usable"
    assert machine.leftovers() == []


async def test_sandboxes_do_not_see_each_other(machine: Machine) -> None:
    async with echo_proxy() as proxy, machine.runtime.sandbox(spec("session-a", proxy_address=proxy.address)) as one:
        running = asyncio.create_task(run(one, f"echo mine > /tmp/file; echo mine > file; {connect(one)}; sleep 0.3"))
        await proxy.connected.wait()
        async with machine.runtime.sandbox(spec("session-b")) as other:
            seen = await said(other, f"ls -A /workspace /tmp ~; cat /proc/[0-9]*/cmdline; {FIND} -name file -print")
        assert (await running).exit_code == 0
    assert "mine" not in seen
    assert "/file" not in seen
