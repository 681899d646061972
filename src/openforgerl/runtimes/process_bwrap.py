"""The world of one program in bubblewrap, as arguments: what it sees, as whom it runs, what it may not do.

Secrets (environment, files) travel by descriptor, never by argv. Until its prelude has become the program, what runs
inside is trusted: bubblewrap, sh, chown, prlimit, setpriv from the read-only /usr.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from openforgerl.records import LaunchPlan
from openforgerl.runtimes.base import WORKSPACE, RuntimeLimits

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs", "ssl/openssl.cnf",
        "ca-certificates", "pki/tls", "pki/ca-trust", "terminfo", "mime.types", "services", "protocols")  # fmt: skip
"""What programs need of /etc and what says nothing about this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxUser:
    """Who runs. `switch`: ids of its own on this machine (root can give them); else those of the one who started us."""

    name: str
    uid: int
    gid: int
    switch: bool

    @property
    def home(self) -> str:
        return f"/home/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One program's view: host folders by their place in the sandbox."""

    user: SandboxUser
    limits: RuntimeLimits
    writable: Mapping[str, Path]
    plan: LaunchPlan
    seccomp: bytes = b""


@dataclass(slots=True)
class Invocation:
    """A command line with the descriptors that it expects to inherit."""

    argv: list[str]
    descriptors: list[int] = field(default_factory=list)
    info: int = -1


def _data(content: bytes, name: str) -> int:
    """A descriptor to read `content` from; it is on no disk."""
    descriptor = os.memfd_create(name)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def environment(plan: LaunchPlan, user: SandboxUser) -> dict[str, str]:
    return {"PATH": DEFAULT_PATH, "HOME": user.home, **plan.env}


def invocation(bwrap: str, world: World, *, join: Path | None = None) -> Invocation:
    """The bwrap command of one program; it first writes itself into the `procs` file `join` of a cgroup."""
    made = Invocation(argv=[])
    try:
        _fill(made, bwrap, world, join)
    except OSError:
        for descriptor in made.descriptors:
            os.close(descriptor)
        if made.info >= 0:
            os.close(made.info)
        raise
    return made


def _fill(made: Invocation, bwrap: str, world: World, join: Path | None) -> None:
    info_read, info_write = os.pipe()
    made.info = info_read
    made.descriptors.append(info_write)
    options = [*_namespaces(world), *_system(), *_etc(world.user, made), *_places(world, made)]
    options += ["--info-fd", str(info_write), "--clearenv"]
    for name, value in environment(world.plan, world.user).items():
        options += ["--setenv", name, value]
    if world.seccomp:
        options += ["--seccomp", _keep(made, world.seccomp, "seccomp")]
    arguments = _keep(made, b"".join(os.fsencode(option) + b"\0" for option in options), "arguments")
    made.argv = [*_joining(join), bwrap, "--args", arguments, "--", "/bin/sh", "-c", _prelude(world), "sh"]
    made.argv += [*_limited(world.limits, world.user), *world.plan.argv]


def _keep(made: Invocation, content: bytes, name: str) -> str:
    made.descriptors.append(_data(content, name))
    return str(made.descriptors[-1])


def _namespaces(world: World) -> list[str]:
    user = ["--unshare-user", "--uid", str(world.user.uid), "--gid", str(world.user.gid)]
    return [*([] if world.user.switch else user), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net",
            "--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session"]  # fmt: skip


def _system() -> list[str]:
    options = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        place = Path("/", name)
        if place.is_symlink():
            options += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    return options


def _etc(user: SandboxUser, made: Invocation) -> list[str]:
    options = _folders(["/etc", "/etc/ssl", "/etc/pki"])
    for name in _ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    files = {
        "passwd": f"root:x:0:0::/:/usr/sbin/nologin\n{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/bash\n",
        "group": f"root:x:0:\n{user.name}:x:{user.gid}:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
    }
    for name, text in files.items():
        options += ["--perms", "0644", "--ro-bind-data", _keep(made, text.encode(), name), f"/etc/{name}"]
    return options


def _folders(places: Iterable[str]) -> list[str]:
    """Made beforehand: the ones that bubblewrap makes on the way to a private file are its own user's alone."""
    return [option for place in places for option in ("--perms", "0755", "--dir", place)]


def _places(world: World, made: Invocation) -> list[str]:
    size = str(world.limits.file_bytes)
    options = _folders(["/home"])
    for mode, place in (("1777", "/tmp"), ("1777", "/dev/shm"), ("0700", world.user.home)):
        options += ["--perms", mode, "--size", size, "--tmpfs", place]
    options += _folders(sorted({str(parent) for place in world.writable for parent in PurePosixPath(place).parents}))
    for place, folder in world.writable.items():
        options += ["--bind", str(folder), place]
    options += _folders(_parents(world))
    for place, folder in world.plan.mounts.items():
        options += ["--ro-bind", str(folder), place]
    for place, content in world.plan.files.items():
        if not beneath(place, WORKSPACE):
            options += ["--perms", "0600", "--file", _keep(made, content, "file"), place]
    return [*options, "--remount-ro", "/", "--chdir", WORKSPACE]


def beneath(place: str, folder: str) -> bool:
    return PurePosixPath(place).is_relative_to(folder)


def _parents(world: World) -> list[str]:
    """Folders on the way to the plan's mounts and files, outer ones first."""
    places = [PurePosixPath(place) for place in (*world.plan.mounts, *world.plan.files)]
    known = {PurePosixPath(path) for path in ("/", "/home", world.user.home, WORKSPACE)}
    folders = {folder for place in places for folder in place.parents} - known
    return [str(folder) for folder in sorted(folders) if not beneath(str(folder), WORKSPACE)]


def _owned(world: World) -> list[str]:
    """What bubblewrap makes as root and the user must own: HOME, the plan's files, and HOME's folders."""
    files = [place for place in world.plan.files if not beneath(place, WORKSPACE)]
    return [world.user.home, *(place for place in _parents(world) if beneath(place, world.user.home)), *files]


def _prelude(world: World) -> str:
    """Own what is the user's, say ready, wait for the owner's go, become the program."""
    own = ""
    if world.user.switch:
        own = f"/usr/bin/chown -h {world.user.uid}:{world.user.gid} -- {shlex.join(_owned(world))} || exit 125; "
    return (
        f"{own}echo ready >&0; read -r go || exit 125; "
        '{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@" </dev/null'
    )  # fmt: skip


def _limited(limits: RuntimeLimits, user: SandboxUser) -> list[str]:
    prlimit = ["/usr/bin/prlimit", f"--fsize={limits.file_bytes}", f"--nproc={limits.processes}", "--core=0", "--"]
    setpriv = ["/usr/bin/setpriv", "--no-new-privs", "--inh-caps=-all"]
    if user.switch:
        setpriv += [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--bounding-set=-all"]
    return [*prlimit, *setpriv, "--"]


def _joining(join: Path | None) -> list[str]:
    if join is None:
        return []
    return ["/bin/sh", "-c", f'echo $$ >{shlex.quote(str(join))} && exec "$@"', "sh"]
