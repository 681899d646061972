"""Every real harness, unmodified, against the proxy and a scripted policy: it works, and the account closes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness_matrix import MEMBERS, Played, play
from openforgerl.records import EndedBy
from openforgerl.trajectories import accounting, check_rows, rows

QUICK = ("pi", "claude-code", "codex")
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.real) for name in MEMBERS]


def assert_account_closes(played: Played) -> None:
    """What the engine answered is in the store, once; every sampled token is owned by one row or has a reason."""
    assert sorted(call.call_id for call in played.calls) == sorted(call_id for call_id, _ in played.policy.asked)
    found = rows(played.calls)
    assert check_rows(played.calls, found) == ()
    assert accounting(played.calls, found).balanced


@pytest.mark.parametrize("name", ALL)
async def test_a_plain_task_is_done_and_no_turn_is_encoded_anew(tmp_path: Path, name: str) -> None:
    played = await play(tmp_path, MEMBERS[name])
    session = played.session
    assert session.ending is not None
    assert session.ending.ended_by is EndedBy.FINISHED, played.log[-3000:]
    assert session.grade is not None
    assert session.grade.reward == 1.0, played.log[-3000:]
    assert_account_closes(played)
    anew = {key: value for key, value in played.counters.items() if key in ("reencoded_turns", "foreign_turns")}
    assert anew == {}
