"""A small seccomp filter: no new namespaces, no mounts, no keys, and no sockets that a network namespace does not hold.

Without it, an agent reaches the machine that runs a virtual machine by AF_VSOCK, and gets all capabilities over a user
namespace of its own. Classic BPF over struct seccomp_data {int nr; u32 arch; u64 ip; u64 args[6]}.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NR, _ARCH, _ARG0 = 0, 4, 16
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_SAME_EVERYWHERE = (*range(425, 434), 442)
"""io_uring_*, open_tree, move_mount, fs*, mount_setattr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    arch: int
    clone: int
    unshare: int
    socket: int
    clone3: int
    denied: tuple[int, ...]
    """setns, mount, umount2, pivot_root, add_key, request_key, keyctl, bpf, userfaultfd, perf_event_open,
    open_by_handle_at."""


_MACHINES = {
    "x86_64": _Machine(
        arch=0xC000003E, clone=56, unshare=272, socket=41, clone3=435,
        denied=(308, 165, 166, 155, 248, 249, 250, 321, 323, 298, 304),
    ),
    "aarch64": _Machine(
        arch=0xC00000B7, clone=220, unshare=97, socket=198, clone3=435,
        denied=(268, 40, 39, 41, 217, 218, 219, 280, 282, 241, 265),
    ),
}  # fmt: skip


def _op(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _fail(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _if_nr(number: int, body: bytes) -> bytes:
    """`body` for one system call, which must return; the accumulator is the number again afterwards."""
    return _op(_EQUAL, number, 0, len(body) // 8) + body


def filter_program(machine: str | None = None) -> bytes:
    """The filter for this machine; empty where its system calls are not known here."""
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return b""
    without_namespaces = _op(_LOAD, _ARG0) + _op(_ANY_BIT, _NEW_NAMESPACES, 0, 1) + _fail(errno.EPERM)
    families = b"".join(_op(_EQUAL, family, 0, 1) + _op(_RETURN, _ALLOW) for family in _FAMILIES)
    program = [
        _op(_LOAD, _ARCH), _op(_EQUAL, known.arch, 1, 0), _fail(errno.ENOSYS),
        _op(_LOAD, _NR), _op(_ANY_BIT, _X32_BIT, 0, 1), _fail(errno.ENOSYS),
        _if_nr(known.clone3, _fail(errno.ENOSYS)),
        *(_if_nr(number, without_namespaces + _op(_RETURN, _ALLOW)) for number in (known.clone, known.unshare)),
        _if_nr(known.socket, _op(_LOAD, _ARG0) + families + _fail(errno.EAFNOSUPPORT)),
        *(_if_nr(number, _fail(errno.EPERM)) for number in (*known.denied, *_SAME_EVERYWHERE)),
        _op(_RETURN, _ALLOW),
    ]  # fmt: skip
    return b"".join(program)
