"""A crowd of sessions that stream at once, then an audit: each answer that a client has is in the store exactly once.

    python bench/proxy_crowd.py [--sessions 1000] [--calls 2] [--tokens 200] [--pace-ms 200]

The engine gives a token every `--pace-ms`, so that all streams are open together. Ends with 1 where a call was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import uvloop
from proxy import CACHE, HERE, Running, candidate, free_port, process
from proxy_load import Conversation, Measured, Target, drive, history, rss_bytes

from openforgerl.records import Completion
from openforgerl.store.sqlite import Store
from openforgerl.tokens.codec import Codec


def audit(store: Store, codec: Codec, target: Target, talk: Conversation) -> Counter[str]:
    """What is wrong with one session; empty where every answer is recorded once, whole, as the ids of its text."""
    session_id = target.path.removeprefix("/s/")
    got = Counter(message["content"] for message in talk.messages if message["role"] == "assistant")
    calls = store.calls(session_id)
    kept = Counter(call.answer.text for call in calls)
    return Counter(
        {
            "lost": (got - kept).total(),
            "never answered": (kept - got).total(),
            "not complete": sum(call.completion is not Completion.COMPLETE for call in calls),
            "other ids": sum(codec.decode(call.sampled_ids[:-1]) != call.answer.text for call in calls),
            "without log-probs": sum(len(call.logprobs) != len(call.sampled_ids) for call in calls),
            "begun only": len(store.intents(session_id)),
        }
    )


def report(running: Running, measured: Measured, before: int, wrong: Counter[str], sessions: int) -> None:
    print(f"{len(measured.latencies)} calls of {sessions} sessions at once, load {os.getloadavg()[0]:.0f}")
    print(f"wall {measured.wall_s:.1f} s, {measured.calls_per_s:.0f} calls/s, CPU {measured.cpu_ms:.2f} ms a call")
    print(f"p50 {measured.percentile_ms(0.5):.0f} ms, p99 {measured.percentile_ms(0.99):.0f} ms")
    print(f"memory a session {(rss_bytes(running.pid) - before) / sessions / 2**20:.2f} MB")
    print("audit: " + (", ".join(f"{number} {name}" for name, number in (+wrong).items()) or "nothing lost"))


def crowd(running: Running, asked: argparse.Namespace) -> Counter[str]:
    before = rss_bytes(running.pid)
    targets: Sequence[Target] = running.targets(asked.sessions)
    talks = [Conversation(history(asked.tokens, 1, seed), seed, asked.tokens) for seed in range(asked.sessions)]
    measured = asyncio.run(drive(targets, talks, asked.calls, stream=True, pid=running.pid))
    store, codec = Store.open(running.folder / "store", read_only=True), Codec.load(asked.tokenizer)
    wrong: Counter[str] = Counter()
    for target, talk in zip(targets, talks, strict=True):
        wrong += audit(store, codec, target, talk)
    store.close()
    report(running, measured, before, wrong, asked.sessions)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--pace-ms", type=float, default=200)
    parser.add_argument("--tokenizer", type=Path, default=CACHE / "models" / "qwen3-tokenizer")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, str(HERE / "proxy_stub.py"), "engine", "--port", str(port)]
        command += ["--pace-ms", str(asked.pace_ms)]
        with process(command, url, Path(folder)), candidate("ours", url, asked.tokenizer) as running:
            return 1 if crowd(running, asked) else 0


if __name__ == "__main__":
    uvloop.install()
    sys.exit(main())
