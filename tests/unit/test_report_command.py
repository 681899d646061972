"""The command, and the reports beside a training: whatever fails in a report, the run goes on."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from openforgerl.cli.main import main
from openforgerl.cli.report import Reporting
from openforgerl.records import Session
from openforgerl.workflows.run_folder import RunFolder
from recorded_calls import recorded
from report_world import Page, Recorded, make_run


class Notes:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.noted = asyncio.Event()

    def phase(self, name: str, rollouts: int) -> None:
        self.lines.append(name)

    def attempt(self, session: Session) -> None:
        self.lines.append(session.session_id)

    def step(self, name: str, metrics: Mapping[str, float | int | str]) -> None:
        self.lines.append(name)

    def note(self, line: str) -> None:
        self.lines.append(line)
        self.noted.set()


async def small_run(tmp_path: Path) -> RunFolder:
    return await make_run(tmp_path / "run", [Recorded("s1", [recorded(0, (1, 2))])])


def test_the_command_writes_the_report_and_prints_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = asyncio.run(small_run(tmp_path))
    assert main(["report", str(run.root)]) == 0
    assert capsys.readouterr().out.strip() == str(run.report)
    assert len(Page(run.report.read_text()).data()["sessions"]) == 1


def test_a_folder_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"openforgerl: {tmp_path} holds no run: progress.json is missing\n"


async def test_an_evaluation_is_followed_by_a_report_while_the_loop_goes_on(tmp_path: Path) -> None:
    run, notes = await small_run(tmp_path), Notes()
    reporting = Reporting(run, notes)
    reporting.step("sft 1", {})
    reporting.step("heldout after_sft", {"reward": 0.5})
    assert not run.report.exists()
    await asyncio.wait_for(notes.noted.wait(), 30)
    assert notes.lines == ["sft 1", "heldout after_sft", f"report: {run.report}"]
    assert run.report.exists()
    await reporting.aclose()
    assert len(notes.lines) == 3


async def test_a_run_that_ends_early_still_has_its_last_report(tmp_path: Path) -> None:
    run, notes = await small_run(tmp_path), Notes()
    reporting = Reporting(run, notes)
    reporting.step("heldout base", {})
    reporting.attempt(Session(session_id="s2"))
    await reporting.aclose()
    written = [line for line in notes.lines if line.startswith("report")]
    assert 1 <= len(written) <= 2
    assert run.report.exists()


async def test_a_report_that_fails_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    run, notes = await small_run(tmp_path), Notes()
    (run.store / "calls.sqlite").write_bytes(b"not a database" * 100)
    reporting = Reporting(run, notes)
    reporting.step("heldout base", {})
    await reporting.aclose()
    assert len(notes.lines) == 2
    assert notes.lines[1].startswith("report not written: StoreError: ")
