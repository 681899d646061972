"""`openforgerl verify RUN`: what holds and what does not; exit code 1 where a law is broken."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from openforgerl.errors import ConfigError
from openforgerl.store.sqlite import Store
from openforgerl.workflows.run_folder import RunFolder
from openforgerl.workflows.verify import MAX_GAP, Verdict, verify

_SHOWN = 20


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_verify(RunFolder(arguments.run)))


async def _verify(folder: RunFolder) -> int:
    finished = "after_rl" in folder.read_progress().evaluations
    store = Store.open(folder.store, read_only=True)
    try:
        verdict = verify(store, settled_only=not finished)
        left_out = len(store.sessions()) - verdict.sessions
    finally:
        await store.aclose()
    if left_out:
        print(f"in work: {left_out} sessions of a step that is not committed, left out until --resume has finished it")
    if not verdict.sessions and verdict.holds:
        raise ConfigError(f"{folder.root}: nothing is recorded yet that could be verified: no step is committed")
    print("\n".join(lines(verdict)))
    return 0 if verdict.holds else 1


def lines(verdict: Verdict) -> list[str]:
    """The verdict for a person; the last line is the result."""
    tokens = verdict.tokens
    found = [
        f"recorded: {verdict.sessions} sessions, {verdict.calls} calls, {verdict.rows} rows",
        f"receipts: {verdict.checked_rows} of {verdict.sampled_rows} sampled rows, largest log-prob gap "
        f"{verdict.max_gap:.2e}, {verdict.within} within {MAX_GAP:.0e}",
        f"tokens: {tokens.sampled} sampled = {tokens.trained} trained + {sum(tokens.masked.values())} masked"
        f"{_reasons(tokens.masked)} + {sum(tokens.unused.values())} unused{_reasons(tokens.unused)}",
    ]
    found += [f"broken: {finding}" for finding in verdict.findings[:_SHOWN]]
    if len(verdict.findings) > _SHOWN:
        found.append(f"broken: {len(verdict.findings) - _SHOWN} more")
    return [*found, "verify: holds" if verdict.holds else f"verify: {len(verdict.findings)} findings"]


def _reasons(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{reason} {count}' for reason, count in sorted(counts.items()))})" if counts else ""
