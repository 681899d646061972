"""Owns the processes of one plain program: run as `process_supervisor.py FSIZE ARGV...`, stdin a socket to the owner.

A subreaper: whatever the program leaves behind becomes its child. It kills all of them when the program ends or when
the socket closes (kill, or the owner's death), and exits with the program's code last of all. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
_KILL_DEADLINE_S = 10.0


def _start(limit: int, argv: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.closerange(3, 256)
    try:
        os.execvpe(argv[0], argv, _environment())
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _environment() -> dict[bytes, bytes]:
    """As it was given: the interpreter adds to its own copy."""
    with open("/proc/self/environ", "rb") as file:
        return dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return [pid for pid in found if pid != os.getpid()]


def _reap(leader: int) -> int | None:
    """Collect the dead; the leader's wait status if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            status = code if pid == leader else status
    return status


def _kill_all(leader: int) -> int | None:
    """Stop first, so that a storm of forks cannot outrun the kill; then kill and reap until no child is left."""
    status = None
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while (left := _descendants()) and time.monotonic() < deadline:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(0.005)
        found = _reap(leader)
        status = status if found is None else found
    return status


def _watch(leader: int) -> int | None:
    """Until the leader ends (its wait status) or the owner closes the socket (None)."""
    ended = os.pidfd_open(leader)
    poll = select.poll()
    for descriptor in (0, ended):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    ready = {descriptor for descriptor, _ in poll.poll()}
    return _reap(leader) if ended in ready else None


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.write(0, b"ready\n")
    if not os.read(0, 1):
        return 125
    while os.read(0, 1) not in (b"\n", b""):
        pass
    leader = _start(int(sys.argv[1]), sys.argv[2:])
    status = _watch(leader)
    killed = _kill_all(leader)
    code = os.waitstatus_to_exitcode(status if status is not None else killed or signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
