"""The one way out of a sandbox: a listener inside its network namespace whose bytes go to the proxy, and nowhere else.

Run as a program (`process_net.py <pid> <port>`, stdin a socket), it makes the listener from a process of its own and
hands it back: only a process with a single thread may enter a user namespace.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import threading

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
NS_GET_USERNS = 0xB701
PORT = 8000
"""Of the listener; every sandbox has a network namespace of its own, so the port is free, and equal in all prompts."""


def _enter(pid: int, *, through_user: bool) -> None:
    """Enter the network namespace of `pid`, as root or by way of the user namespace that owns it."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if through_user:
            _set_namespace(fcntl.ioctl(network, NS_GET_USERNS), CLONE_NEWUSER)
        _set_namespace(network, CLONE_NEWNET)
    finally:
        os.close(network)


def _set_namespace(descriptor: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, kind) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a namespace of the sandbox")


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", PORT))
    listener.listen(128)
    return listener


def listen_as_root(pid: int) -> socket.socket:
    """A listener in the network namespace of `pid`. A thread enters it and ends, because it cannot come back."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def enter_and_listen() -> None:
        try:
            _enter(pid, through_user=False)
            made.append(_listen())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=enter_and_listen)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def listen_as_user(pid: int) -> socket.socket:
    """The same without root: through the sandbox's user namespace, from a process that does only this."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([sys.executable, "-I", "-S", __file__, str(pid)], stdin=theirs.fileno(), timeout=20, check=False)
        ours.settimeout(0)
        try:
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        except BlockingIOError as error:
            raise OSError(f"no listener in the network namespace of process {pid}") from error
    return socket.socket(fileno=descriptors[0])


_CONNECT_DEADLINE_S = 30.0


class Forwarder:
    """Accepts on a sandbox's listener and copies bytes both ways. `close` ends every connection."""

    def __init__(self, listener: socket.socket, target: tuple[str, int], *, connections: int = 64) -> None:
        self._listener = listener
        self._target = target
        self._connections = connections
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closed = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed or len(self._open) >= self._connections:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_DEADLINE_S):
                far_reader, far_writer = await asyncio.open_connection(*self._target)
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, far_writer))
                both.create_task(_copy(far_reader, writer))
            writer.close()
            far_writer.close()
        except* OSError:
            pass
        finally:
            for end in (writer, far_writer):
                if not end.is_closing():
                    end.transport.abort()

    async def close(self) -> None:
        """Idempotent; afterwards nothing listens and nothing is connected."""
        self._closed = True
        if self._server is None:
            self._listener.close()
            return
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """To the end of one direction, which is passed on while the other one may go on."""
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


def _main(pid: int) -> None:
    _enter(pid, through_user=True)
    with socket.socket(fileno=os.dup(0)) as back, _listen() as listener:
        socket.send_fds(back, [b"."], [listener.fileno()])


if __name__ == "__main__":
    _main(int(sys.argv[1]))
