"""Laws 1 and 2 as assertions about a trajectories module, so that mutated copies of it can be put to the same test."""

from __future__ import annotations

from random import Random
from types import ModuleType

from openforgerl.records import CallKind, MaskReason, RecordedCall, TokenRow
from openforgerl.trajectories import accounting, check_rows
from random_sessions import RandomSession, expected_parent, random_session, side_and_main, with_other_deltas


def assert_laws(trajectories: ModuleType, session: RandomSession, random: Random) -> None:
    calls, truth = session.calls, session.truth
    assert trajectories.prompt_ids(calls) == {name: call.prompt for name, call in truth.items()}
    parents = trajectories.parents(calls)
    assert parents == {call.call_id: expected_parent(calls, truth, place) for place, call in enumerate(calls)}
    rows = trajectories.rows(calls)
    assert trajectories.rows(random.sample(calls, len(calls))) == rows
    assert trajectories.rows(with_other_deltas(random, session)) == rows
    assert check_rows(calls, rows) == ()
    assert accounting(calls, rows).balanced
    assert_leaves(calls, rows, parents)
    assert_owned_once(session, rows)
    assert_first_is_trained(session, rows)
    assert_grown_from(trajectories, calls, rows)


def assert_leaves(calls: tuple[RecordedCall, ...], rows: tuple[TokenRow, ...], parents: dict[str, str | None]) -> None:
    """A row for each call that sampled something and that no such call extends, along its parents."""
    sampled = [call.call_id for call in calls if call.sampled_ids]
    leaves = set(sampled) - {parents[name] for name in sampled}
    assert {row.segments[-1].call_id for row in rows} == leaves
    assert len(rows) == len(leaves)
    for row in rows:
        path: list[str | None] = [segment.call_id for segment in row.segments]
        assert path == [*(parents[str(name)] for name in path[1:]), path[-1]]
        assert parents[str(path[0])] is None


def assert_owned_once(session: RandomSession, rows: tuple[TokenRow, ...]) -> None:
    """Every sampled token, in one row, behind its prompt, with its log-prob, version, mask and reason."""
    owned = [(segment.call_id, row) for row in rows for segment in row.segments if segment.owned]
    assert sorted(name for name, _ in owned) == sorted(call.call_id for call in session.calls if call.sampled_ids)
    row_of = dict(owned)
    for call in session.calls:
        if not call.sampled_ids:
            continue
        row, truth = row_of[call.call_id], session.truth[call.call_id]
        assert row.token_ids[: len(truth.whole)] == truth.whole
        part = slice(len(truth.prompt), len(truth.whole))
        assert row.logprobs[part] == call.logprobs
        assert row.policy_versions[part] == tuple(run.policy_version for run in call.versions for _ in range(run.count))
        (reason,) = set(row.mask_reasons[part])
        other_temperature = reason is MaskReason.CHANGED_DISTRIBUTION and row.temperature != heat(call)
        assert reason is truth.reason or other_temperature
        assert reason is MaskReason.CHANGED_DISTRIBUTION or row.temperature == heat(call)
    assert sum(map(sum, (row.loss_mask for row in rows))) == sum(
        len(call.sampled_ids) for name, row in owned for call in session.calls
        if call.call_id == name and row.mask_reasons[len(session.truth[name].prompt)] is None
    )  # fmt: skip


def assert_first_is_trained(session: RandomSession, rows: tuple[TokenRow, ...]) -> None:
    """A row's temperature is never that of a call that is masked, or was greedy, while another's would do."""
    for row in rows:
        reason_of = {segment: session.truth[segment.call_id].reason for segment in row.segments if segment.owned}
        free = [segment for segment, reason in reason_of.items() if reason is None]
        unchanged = [segment for segment in reason_of if reason_of[segment] is not MaskReason.CHANGED_DISTRIBUTION]
        for segment in (free or unchanged)[:1]:
            assert row.mask_reasons[segment.start] is reason_of[segment]


def heat(call: RecordedCall) -> float:
    return 1.0 if call.sampling_used.temperature is None else call.sampling_used.temperature


def assert_grown_from(trajectories: ModuleType, calls: tuple[RecordedCall, ...], rows: tuple[TokenRow, ...]) -> None:
    """Later calls extend rows or add some: nothing that was owned moves, no row gets another number."""
    for count in range(len(calls)):
        for early in trajectories.rows(calls[:count]):
            late = rows[early.branch]
            assert late.branch == early.branch
            assert late.token_ids[: len(early.token_ids)] == early.token_ids
            assert late.segments[: len(early.segments)] == early.segments


def assert_side_calls_are_masked(trajectories: ModuleType, random: Random) -> None:
    calls, kinds = side_and_main(random)
    assert trajectories.kinds(calls) == kinds
    for row in trajectories.rows(calls):
        side = kinds[row.segments[-1].call_id] is CallKind.SIDE
        assert (MaskReason.SIDE_CALL in row.mask_reasons) is side
        assert (None in row.mask_reasons) is not side


def assert_unrelated_calls_do_not_meet(trajectories: ModuleType, random: Random) -> None:
    """Two trees without a common id give the rows that each gives alone, however their calls are interleaved."""
    first = random_session(random, most_calls=5).calls
    second = random_session(random, most_calls=5, offset=50).calls
    turns = random.sample([0] * len(first) + [1] * len(second), len(first) + len(second))
    queues = (iter(renamed(first, "a", turns)), iter(renamed(second, "b", turns)))
    mixed = tuple(next(queues[turn]) for turn in turns)
    together = sorted(map(contents, trajectories.rows(mixed)))
    apart = [
        row for part, name in ((first, "a"), (second, "b")) for row in trajectories.rows(renamed(part, name, turns))
    ]
    assert together == sorted(map(contents, apart))


def renamed(calls: tuple[RecordedCall, ...], name: str, turns: list[int]) -> list[RecordedCall]:
    """With their places in the mixed session."""
    places = [place for place, turn in enumerate(turns) if turn == "ab".index(name)]
    return [rename(call, name, place) for call, place in zip(calls, places, strict=True)]


def rename(call: RecordedCall, name: str, index: int) -> RecordedCall:
    fields = {field: getattr(call, field) for field in call.__slots__}
    prompt = call.prompt
    parent = f"{name}{prompt.parent}" if prompt.parent else None
    fields["prompt"] = type(prompt)(parent=parent, cut=prompt.cut, new_ids=prompt.new_ids)
    return RecordedCall(**{**fields, "call_id": f"{name}{call.call_id}", "index": index})


def contents(row: TokenRow) -> str:
    """All of a row but its number."""
    return repr([getattr(row, name) for name in row.__slots__ if name != "branch"])
