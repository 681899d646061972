"""The rollouts that a page embeds are those of the store: token by token, with reason, log-prob and version."""

from itertools import chain, repeat
from pathlib import Path
from random import Random

import pytest

from openforgerl.records import EndedBy, Ending, Grade
from openforgerl.store.sqlite import Store
from openforgerl.trajectories import kinds, rows
from openforgerl.web.report import render
from openforgerl.workflows.account import token_account
from random_sessions import random_session
from recorded_calls import recorded
from report_world import Page, Recorded, make_run, whole_ids


async def test_every_row_comes_back_token_by_token(tmp_path: Path) -> None:
    sessions = [Recorded(f"s{seed}", random_session(Random(seed)).calls) for seed in range(40)]
    run = await make_run(tmp_path / "run", sessions)
    data = Page(render(run)).data()
    store = Store.open(run.store, read_only=True)
    assert [session["id"] for session in data["sessions"]] == [session.session_id for session in store.sessions()]
    seen = 0
    for session in data["sessions"]:
        calls = store.calls(session["id"])
        assert [call["kind"] for call in session["calls"]] == [str(kinds(calls)[call.call_id]) for call in calls]
        assert len(session["rows"]) == len(rows(calls))
        for shown, row in zip(session["rows"], rows(calls), strict=True):
            ids = whole_ids(data, session, shown["segments"][-1][0])[: shown["length"]]
            assert tuple(ids) == row.token_ids
            assert list(chain(*(repeat(reason or None, count) for reason, count in shown["reasons"]))) == list(
                row.mask_reasons
            )
            assert [part[1:] for part in shown["segments"]] == [[s.start, s.stop, s.owned] for s in row.segments]
            seen += len(ids)
        for shown, call in zip(session["calls"], calls, strict=True):
            assert [-unit * data["logprob_unit"] for unit in shown["logprobs"]] == pytest.approx(
                call.logprobs, abs=data["logprob_unit"] / 2
            )
            assert shown["versions"] == [[run.policy_version, run.count] for run in call.versions]
    store.close()
    assert seen > 100


async def test_tokens_of_the_page_add_up_to_the_account(tmp_path: Path) -> None:
    reasons = ["", "", "zero_variance", "evaluation", None]
    sessions = [
        Recorded(f"s{seed}", random_session(Random(seed)).calls, use_reason=reasons[seed % len(reasons)])
        for seed in range(40)
    ]
    run = await make_run(tmp_path / "run", sessions)
    data = Page(render(run)).data()
    store = Store.open(run.store, read_only=True)
    account = token_account(store)
    store.close()
    assert sum(len(call["sampled"]) for session in data["sessions"] for call in session["calls"]) == account.sampled
    admitted = [
        (session["unused_for"], count)
        for session in data["sessions"]
        for row in session["rows"]
        for reason, count in row["reasons"]
        if not reason
    ]
    assert sum(count for unused, count in admitted if not unused) == account.trained > 0
    for name, expected in account.unused.items():
        assert sum(count for unused, count in admitted if unused == name) == expected > 0


async def test_a_prompt_that_sessions_share_is_embedded_once(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", [Recorded(f"s{n}", [recorded(0, range(500), (n,))]) for n in range(30)])
    data = Page(render(run)).data()
    assert sum(len(ids) for ids in data["pool"]) == 500


async def test_endings_grades_and_uses_come_with_their_reasons(tmp_path: Path) -> None:
    failed = Recorded(
        "s1", [recorded(0, (1, 2))], ending=Ending(ended_by=EndedBy.INFRA, reason="sandbox: no space"),
        grade=Grade(kind="ungraded", reason="infra"), use_reason="infra",
    )  # fmt: skip
    still_open = Recorded("s2", (), ending=None, grade=None, use_reason=None)
    run = await make_run(tmp_path / "run", [failed, still_open])
    page = Page(render(run))
    first, second = page.data()["sessions"]
    assert (first["ended_by"], first["ended_reason"], first["grade"], first["unused_for"]) == (
        "infra", "sandbox: no space", "ungraded", "infra",
    )  # fmt: skip
    assert (second["ended_by"], second["grade"], second["unused_for"]) == ("open", "none", "open")
    assert "sandbox: no space" in page.text


async def test_a_long_output_keeps_its_ends_and_says_what_is_left_out(tmp_path: Path) -> None:
    run = await make_run(tmp_path / "run", [Recorded("s1", [recorded(0, (1, 2))])])
    (run.logs / "s1.log").write_bytes(b"first" + b"x" * 100_000 + b"last \xff")
    log = Page(render(run)).data()["sessions"][0]["log"]
    assert log["head"].startswith("first")
    assert log["tail"].endswith("last \\xff")
    assert log["left_out"] + 6_000 == log["size"] == 100_011
