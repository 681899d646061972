"""Runs for tests of the report, and the page as a browser takes it apart."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from openforgerl.records import EndedBy, Ending, Grade, Receipt, RecordedCall, Session, Use
from openforgerl.store.sqlite import Store
from openforgerl.trajectories import rows
from openforgerl.workflows.run_folder import Evaluation, Progress, RunFolder

TINY = Path(__file__).parent / "fixtures" / "tiny-chatml"
FINISHED = Ending(ended_by=EndedBy.FINISHED)
GRPO = {"phase": "grpo", "step": "0", "split": "train", "policy_version": "3"}


@dataclass
class Recorded:
    """One session as a run would leave it."""

    session_id: str
    calls: Sequence[RecordedCall] = ()
    ending: Ending | None = FINISHED
    grade: Grade | None = field(default_factory=lambda: Grade(kind="reward", reward=1.0))
    labels: Mapping[str, str] = field(default_factory=lambda: GRPO)
    task_id: str = "copy-file"
    use_reason: str | None = ""
    """None: its step is not committed."""
    receipts: bool = True


async def make_run(
    root: Path, sessions: Sequence[Recorded], progress: Progress | None = None, config: str = ""
) -> RunFolder:
    run = RunFolder(root)
    run.create()
    run.config.write_text(config, encoding="utf-8")
    store = Store.open(run.store)
    for each in sessions:
        await record(store, each)
    await store.aclose()
    run.commit(progress or Progress())
    return run


async def record(store: Store, recorded: Recorded) -> None:
    name = recorded.session_id
    calls = [replace(call, session_id=name) for call in recorded.calls]
    await store.open_session(
        Session(
            session_id=name, task_id=recorded.task_id, group_id="g1", rollout_id="g1-r1", harness="react",
            labels=recorded.labels, created_at=1.0,
        )
    )  # fmt: skip
    for call in calls:
        await store.commit(call)
    if recorded.ending:
        await store.seal(name, recorded.ending)
    if recorded.grade:
        await store.grade(name, recorded.grade)
    if recorded.receipts:
        await store.receipts([receipt(name, row.branch) for row in rows(calls)])
    if recorded.use_reason is not None:
        reason = recorded.use_reason
        await store.uses([Use(session_id=name, phase="grpo", step=0, trained=not reason, reason=reason)])


def receipt(session_id: str, branch: int, max_gap: float = 2e-5) -> Receipt:
    return Receipt(session_id=session_id, branch=branch, policy_version=3, tokens=2, max_gap=max_gap, mean_gap=1e-6)


def evaluation(reward: float, policy_version: int, **by_task: float) -> Evaluation:
    return Evaluation(mean_reward=reward, rollouts=20, graded=20, policy_version=policy_version, by_task=by_task)


class Page(HTMLParser):
    """Tags, attributes, text, and what stands in script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def data(self) -> dict[str, Any]:
        """What is embedded for the viewer."""
        found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(self.scripts[0])))
        return found


def whole_ids(data: Mapping[str, Any], session: Mapping[str, Any], at: int) -> list[int]:
    """As the viewer puts a call's ids together."""
    call = session["calls"][at]
    before = [] if call["parent"] < 0 else whole_ids(data, session, call["parent"])[: call["cut"]]
    return [*before, *data["pool"][call["new"]], *call["sampled"]]
