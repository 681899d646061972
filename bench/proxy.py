"""What recording costs: our proxy beside the floor of any Python proxy, in one run.

    python bench/proxy.py [--only floor+wal,ours] [--hist 10000 100000] [--calls 4] [--reps 1] [--out FOLDER]

64 sessions at once, each with a history of so many tokens that its proxy has seen, then `--calls` calls of 500 new
tokens each: 64 of an answer, the rest a new message. `ours` is `openforgerl serve`, ids and log-probs durable before
an answer ends; `ours, unsynced` is the same without fsync. The engine gives the same 64 tokens always. On a machine
that others use CPU ms a call, and its ratio to floor+wal, is the sound figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from proxy_load import Conversation, Measured, Target, drive, history, rss_bytes
from proxy_plot import plot

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("OPENFORGERL_CACHE") or Path.home() / ".cache" / "openforgerl")
TURNS = (1, 8, 32, 128)
SESSIONS = 64
WALK_TURNS, WALK_TOKENS = 128, 100_000
TOKEN = "bench"
UNSYNCED = "import openforgerl.store.writer as w; w.SYNCED = 'OFF'; "
SERVE = "import sys; sys.path.insert(0, {bench!r}); {patch}from openforgerl.cli.main import main; sys.exit(main())"


@dataclass
class Row:
    candidate: str
    what: str
    cpu_ms: float
    calls_per_s: float
    p50_ms: float
    p99_ms: float
    session_mb: float
    bytes_per_token: float | None = None


@dataclass
class Running:
    """A candidate that listens."""

    name: str
    pid: int
    port: int
    folder: Path

    def targets(self, count: int) -> list[Target]:
        if self.name.startswith("ours"):
            return [self._session() for _ in range(count)]
        return [Target(("127.0.0.1", self.port), "", f"k{place}") for place in range(count)]

    def _session(self) -> Target:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/sessions", b"{}", {"Authorization": f"Bearer {TOKEN}"}
        )
        opened = json.load(urllib.request.urlopen(request, timeout=30))
        return Target(("127.0.0.1", self.port), f"/s/{opened['session_id']}", opened["key"])

    def store_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("calls.sqlite*"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], url: str, folder: Path) -> Iterator[int]:
    """Runs until left; entered once `url` answers."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src"), "OPENFORGERL_ADMIN_TOKEN": TOKEN}
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env)
    try:
        for _ in range(600):
            if running.poll() is not None:
                raise RuntimeError(f"{command} ended: {(folder / 'log').read_text()[-2000:]}")
            try:
                urllib.request.urlopen(url, timeout=2)
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        yield running.pid
    except BaseException:
        print((folder / "log").read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        running.terminate()
        running.wait(20)


@contextmanager
def candidate(name: str, upstream: str, tokenizer: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openforgerl-bench-", dir=HERE.parent)))
        port = free_port()
        if name.startswith("ours"):
            config = (
                f"[model]\npath = {str(tokenizer)!r}\n[proxy]\nport = {port}\n[store]\npath = 'store'\n"
                f"[engine]\ntype = 'proxy_engine:BenchEngine'\noptions = {{ url = {upstream!r} }}\n"
            )
            (folder / "serve.toml").write_text(config)
            patch = UNSYNCED if "unsynced" in name else ""
            code = SERVE.format(bench=str(HERE), patch=patch)
            command = [sys.executable, "-P", "-c", code, "serve", "serve.toml"]
        else:
            command = [
                sys.executable,
                str(HERE / "proxy_stub.py"),
                "floor",
                "--port",
                str(port),
                "--upstream",
                upstream,
            ]
            command += ["--db", str(folder / "calls.sqlite")] if "wal" in name else []
        pid = stack.enter_context(process(command, f"http://127.0.0.1:{port}/healthz", folder))
        yield Running(name, pid, port, folder)


def row(name: str, what: str, measured: Measured, grown: float) -> Row:
    return Row(
        name, what, measured.cpu_ms, measured.calls_per_s,
        measured.percentile_ms(0.5), measured.percentile_ms(0.99), grown,
    )  # fmt: skip


async def cell(running: Running, tokens: int, calls: int, *, stream: bool, dialect: str = "chat") -> Row:
    """Histories are seen once, unmeasured; then the calls."""
    before = rss_bytes(running.pid)
    targets = running.targets(SESSIONS)
    turns = [TURNS[seed % len(TURNS)] for seed in range(SESSIONS)]
    talks = [Conversation(history(tokens, turns[seed], seed), seed, dialect=dialect) for seed in range(SESSIONS)]
    await drive(targets, talks, 1, stream=stream, pid=running.pid)
    measured = await drive(targets, talks, calls, stream=stream, pid=running.pid)
    what = f"{tokens // 1000}k, {'streamed' if stream else 'whole'}"
    name = running.name if dialect == "chat" else f"{running.name}, {dialect}"
    return row(name, what, measured, (rss_bytes(running.pid) - before) / SESSIONS / 2**20)


async def alone(running: Running, calls: int) -> Row:
    """One session of 10k: latency without a queue."""
    targets, talks = running.targets(1), [Conversation(history(10_000, 8, 0), 0)]
    await drive(targets, talks, 1, stream=False, pid=running.pid)
    measured = await drive(targets, talks, calls, stream=False, pid=running.pid)
    return row(running.name, "10k, alone", measured, 0.0)


async def walk(running: Running, sessions: int) -> Row:
    """Sessions that grow to 100k in 128 turns, all at once; the last 8 turns are measured."""
    before, stored = rss_bytes(running.pid), running.store_bytes()
    targets = running.targets(sessions)
    each = WALK_TOKENS // WALK_TURNS - 64
    talks = [Conversation(history(each, 1, seed), seed, each) for seed in range(100, 100 + sessions)]
    await drive(targets, talks, WALK_TURNS - 8, stream=False, pid=running.pid)
    measured = await drive(targets, talks, 8, stream=False, pid=running.pid)
    found = row(running.name, "turns 121-128", measured, (rss_bytes(running.pid) - before) / sessions / 2**20)
    tokens = sessions * (WALK_TOKENS + 4000)
    found.bytes_per_token = (running.store_bytes() - stored) / tokens
    return found


def measure(name: str, upstream: str, asked: argparse.Namespace) -> list[Row]:
    with candidate(name, upstream, asked.tokenizer) as running:
        cells = [asyncio.run(alone(running, 24))] if "alone" in asked.cells else []
        for tokens in asked.hist:
            for stream in (False, True):
                if ("streamed" if stream else "whole") in asked.cells:
                    for dialect in asked.dialects if name == "ours" else ("chat",):
                        cells.append(asyncio.run(cell(running, tokens, asked.calls, stream=stream, dialect=dialect)))
        if "walk" in asked.cells:
            cells.append(asyncio.run(walk(running, asked.walkers)))
        return cells


def medians(rows: list[Row]) -> list[Row]:
    """Of the repetitions of each cell."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        groups.setdefault((each.candidate, each.what), []).append(each)
    found = []
    for (name, what), same in groups.items():
        numbers = {key: statistics.median(getattr(each, key) for each in same) for key in
                   ("cpu_ms", "calls_per_s", "p50_ms", "p99_ms", "session_mb")}  # fmt: skip
        found.append(Row(name, what, **numbers, bytes_per_token=same[0].bytes_per_token))
    return found


def report(rows: list[Row]) -> str:
    """Beside the floor with a durable record, and other dialects beside chat."""
    floor = {each.what: each for each in rows if each.candidate == "floor+wal"}
    chat = {each.what: each for each in rows if each.candidate == "ours"}
    lines = [
        "| cell | candidate | CPU ms/call | x floor+wal | x ours, chat | calls/s | p50 ms | p99 ms | MB/session | "
        "store B/token |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in sorted(rows, key=lambda row: row.what):
        ratios = [f"{each.cpu_ms / of[each.what].cpu_ms:.2f}" if each.what in of else "-" for of in (floor, chat)]
        size = f"{each.bytes_per_token:.1f}" if each.bytes_per_token else "-"
        lines.append(
            f"| {each.what} | {each.candidate} | {each.cpu_ms:.2f} | {' | '.join(ratios)} | {each.calls_per_s:.0f} | "
            f"{each.p50_ms:.1f} | {each.p99_ms:.1f} | {each.session_mb:.2f} | {size} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="floor,floor+wal,ours,ours unsynced")
    parser.add_argument("--hist", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--dialects", nargs="*", default=["chat", "messages", "responses", "gemini"])
    parser.add_argument("--cells", default="alone,whole,streamed,walk")
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--walkers", type=int, default=16)
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--tokenizer", type=Path, default=CACHE / "models" / "qwen3-tokenizer")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    names, rows = asked.only.split(","), []
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, str(HERE / "proxy_stub.py"), "engine", "--port", str(port)]
        with process(command, f"http://127.0.0.1:{port}/", Path(folder)):
            for turn in range(asked.reps):
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    rows += measure(name, f"http://127.0.0.1:{port}", asked)
                    print(f"{name}: load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    rows = medians(rows)
    print(report(rows))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "proxy.json").write_text(json.dumps([asdict(each) for each in rows], indent=1))
        (asked.out / "proxy.svg").write_text(plot([(each.what, each.candidate, each.cpu_ms) for each in rows]))


if __name__ == "__main__":
    uvloop.install()
    main()
