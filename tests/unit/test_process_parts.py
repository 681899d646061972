"""Parts of the process runtime that need no sandbox: output caps, the system call filter, paths without isolation."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforgerl.runtimes.process_output import CappedOutput
from openforgerl.runtimes.process_plain import Translation
from openforgerl.runtimes.process_seccomp import filter_program

ALLOW, EPERM, ENOSYS, EAFNOSUPPORT = 0x7FFF0000, 0x00050001, 0x00050026, 0x00050061
X86, ARM = 0xC000003E, 0xC00000B7


@given(st.lists(st.binary(max_size=300_000), max_size=6), st.integers(0, 50_000))
def test_of_any_output_the_head_and_the_tail_of_the_cap_stay(chunks: list[bytes], cap: int) -> None:
    output = CappedOutput(cap)
    for chunk in chunks:
        output.feed(chunk)
    everything = b"".join(chunks)
    head, tail = cap // 2, cap - cap // 2
    kept = everything if len(everything) <= cap else everything[:head] + everything[len(everything) - tail :]
    assert output.value() == kept
    assert output.dropped == len(everything) - len(kept)


def verdict(program: bytes, number: int, arch: int, first: int = 0) -> int:
    """What the kernel's interpreter answers, for the instructions that the filter uses."""
    data = struct.pack("=iIQ6Q", number, arch, 0, first, 0, 0, 0, 0, 0)
    accumulator, place = 0, 0
    while True:
        code, then, otherwise, value = struct.unpack_from("=HBBI", program, place * 8)
        place += 1
        if code == 0x06:
            return value
        if code == 0x20:
            [accumulator] = struct.unpack_from("=I", data, value)
        else:
            taken = accumulator == value if code == 0x15 else bool(accumulator & value)
            place += then if taken else otherwise


@pytest.mark.parametrize(
    ("machine", "arch", "clone", "unshare", "socket", "mount", "read"),
    [("x86_64", X86, 56, 272, 41, 165, 0), ("aarch64", ARM, 220, 97, 198, 40, 63)],
)
def test_the_filter_refuses_namespaces_mounts_and_odd_sockets_only(
    machine: str, arch: int, clone: int, unshare: int, socket: int, mount: int, read: int
) -> None:
    program = filter_program(machine)
    new_user, threads, files = 0x10000000, 0x003D0F00, 0x400
    assert verdict(program, read, arch) == ALLOW
    assert verdict(program, clone, arch, threads) == ALLOW
    assert verdict(program, clone, arch, new_user | 17) == EPERM
    assert verdict(program, unshare, arch, files) == ALLOW
    assert verdict(program, unshare, arch, new_user) == EPERM
    assert verdict(program, 435, arch, new_user) == ENOSYS
    assert verdict(program, mount, arch) == EPERM
    assert {verdict(program, socket, arch, family) for family in (1, 2, 10, 16)} == {ALLOW}
    assert {verdict(program, socket, arch, family) for family in (17, 38, 40, 44)} == {EAFNOSUPPORT}
    assert verdict(program, read, 0x40000003) == ENOSYS
    assert verdict(program, read | 0x40000000, arch) == ENOSYS


def test_an_unknown_machine_has_no_filter() -> None:
    assert filter_program("riscv64") == b""


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("cat /workspace/file", "cat /real/ws/file"),
        ("/workspace", "/real/ws"),
        ("Work in /workspace. Then stop.", "Work in /real/ws. Then stop."),
        ("HOME=/home/agent:/opt/tool/bin", "HOME=/real/home:/host/tool/bin"),
        ("'/tests'>/logs/verifier/x", "'/real/tests'>/real/logs/x"),
        ("/workspaces /workspace-2 /workspace.txt", "/workspaces /workspace-2 /workspace.txt"),
        ("/old/workspace ./workspace ~/workspace", "/old/workspace ./workspace ~/workspace"),
        ("no path \udcff", "no path \udcff"),
    ],
)
def test_without_isolation_sandbox_paths_become_real_ones(text: str, translated: str) -> None:
    places = {"/workspace": "/real/ws", "/home/agent": "/real/home", "/opt/tool": "/host/tool", "/tests": "/real/tests",
              "/logs/verifier": "/real/logs"}  # fmt: skip
    assert Translation({place: Path(real) for place, real in places.items()}).text(text) == translated
