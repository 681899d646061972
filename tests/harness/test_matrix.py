"""Every real harness, unmodified, against the proxy and a scripted policy: it works, and the account closes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from harness_matrix import CONTEXT, MEMBERS, OVERFLOW, Played, play
from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.records import CallKind, Completion, EndedBy
from openforgerl.trainers.local import LocalTrainer
from openforgerl.trainers.local_config import LocalTrainerConfig
from openforgerl.trajectories import accounting, check_rows, kinds, rows
from tiny_models import write_tiny_model

QUICK = ("pi", "claude-code", "codex")
CUT = ScriptedAnswer(text="I was about to say that", chunk_sizes=(2,), abort_after=8)
GIVE_UP = {"pi", "qwen-code"}
"""Take an answer that breaks off for the end of the run."""
STOP = (EndedBy.CONTEXT_FULL, 0.0)
SUMMARISE = {
    "pi": (EndedBy.FINISHED, 1.0),
    "claude-code": (EndedBy.FINISHED, 1.0),
    "qwen-code": (EndedBy.FINISHED, 1.0),
    "opencode": (EndedBy.AGENT_CRASH, 1.0),
}
"""Who goes on behind a full context, and how its run ends: OpenCode exits with 1 though it did the task."""
ALL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.real) for name in MEMBERS]


def assert_account_closes(played: Played) -> None:
    """What the engine answered is in the store, once; every sampled token is owned by one row or has a reason."""
    assert sorted(call.call_id for call in played.calls) == sorted(call_id for call_id, _ in played.policy.asked)
    found = rows(played.calls)
    assert check_rows(played.calls, found) == ()
    assert accounting(played.calls, found).balanced


def encoded_anew(played: Played) -> Counter[str]:
    """Turns of the policy that came back otherwise than as their ids, over all calls."""
    found = Counter[str]()
    for call in played.calls:
        found += Counter({name: call.counters.get(name, 0) for name in ("reencoded_turns", "foreign_turns")})
    return found


def assert_a_step_trains_every_sampled_token(played: Played, folder: Path) -> None:
    """One optimizer step of a random model with a long context on the rows of the rollout."""
    vocabulary = played.policy.codec.tokenizer.get_vocab_size()
    model = write_tiny_model(folder / "model", max_position_embeddings=CONTEXT, vocab_size=vocabulary)
    trainer = LocalTrainer.load(model, LocalTrainerConfig())
    metrics = trainer.sft_step(rows(played.calls)).metrics
    sampled = sum(len(call.sampled_ids) for call in played.calls if call.tools)
    assert metrics["tokens_trained"] == sampled
    assert math.isfinite(metrics["loss"])
    assert metrics["loss"] > 0


@pytest.mark.parametrize("name", ALL)
async def test_a_plain_task_is_done_and_no_turn_is_encoded_anew(tmp_path: Path, name: str) -> None:
    played = await play(tmp_path, MEMBERS[name])
    session = played.session
    assert session.ending is not None
    assert session.ending.ended_by is EndedBy.FINISHED, played.log[-3000:]
    assert session.grade is not None
    assert session.grade.reward == 1.0, played.log[-3000:]
    assert_account_closes(played)
    assert encoded_anew(played) == {}
    assert_a_step_trains_every_sampled_token(played, tmp_path)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.real) for name in MEMBERS])
async def test_an_engine_that_fails_and_drops_a_call_costs_a_retry_or_is_named(tmp_path: Path, name: str) -> None:
    """Call 2 gets status 503, a later one breaks off in mid-answer. A harness that gives up is no agent that failed."""
    played = await play(tmp_path, MEMBERS[name], call2=ScriptedAnswer(fail_after=0), call4=CUT)
    session = played.session
    assert session.ending is not None
    assert session.grade is not None
    ended = (session.ending.ended_by, session.grade.reward)
    assert ended == ((EndedBy.INFRA, None) if name in GIVE_UP else (EndedBy.FINISHED, 1.0)), played.log[-3000:]
    assert_account_closes(played)
    found = [call.completion for call in played.calls]
    assert (found.count(Completion.ERROR), found.count(Completion.ENGINE_ABORTED)) == (1, 1)


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name, member in MEMBERS.items() if member.delegate])
async def test_a_sub_agent_has_a_row_of_its_own_and_its_parent_goes_on(tmp_path: Path, name: str) -> None:
    played = await play(tmp_path, MEMBERS[name], delegates=True)
    session = played.session
    assert session.ending is not None
    assert session.ending.ended_by is EndedBy.FINISHED, played.log[-3000:]
    assert session.grade is not None
    assert session.grade.reward == 1.0, played.log[-3000:]
    assert_account_closes(played)
    assert encoded_anew(played) == {}
    found = [row for row in rows(played.calls) if any(row.loss_mask)]
    assert len(found) == 2
    assert list(kinds(played.calls).values()).count(CallKind.SUBAGENT) == 2


@pytest.mark.real
@pytest.mark.parametrize("name", MEMBERS)
async def test_a_full_context_is_summarised_and_the_task_goes_on_or_the_ending_says_so(
    tmp_path: Path, name: str
) -> None:
    played = await play(tmp_path, MEMBERS[name], call2=OVERFLOW)
    session = played.session
    assert session.ending is not None
    assert session.grade is not None
    assert (session.ending.ended_by, session.grade.reward) == SUMMARISE.get(name, STOP), played.log[-3000:]
    assert_account_closes(played)
    # Claude Code offers its tools with the wish for a summary too: a turn of the main conversation.
    told_apart = name in SUMMARISE and name != "claude-code"
    assert (CallKind.SUMMARY in kinds(played.calls).values()) is told_apart
