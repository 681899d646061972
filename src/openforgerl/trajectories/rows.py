"""Calls to rows of ids: law 1. Every sampled token of a session is owned by exactly one row, behind its own prompt.

A row may be extended by later calls, and new ones may follow, but who owns what and the rows' numbers never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from openforgerl.records import CallKind, Completion, MaskReason, RecordedCall, Segment, TokenRow
from openforgerl.trajectories.kinds import kinds_of
from openforgerl.trajectories.prompts import ID_BYTES, content_prompts, in_order, parents_of, prompt_bytes, to_ids

_UNFINISHED = {
    Completion.CLIENT_ABORTED: MaskReason.CLIENT_ABORTED,
    Completion.ENGINE_ABORTED: MaskReason.ENGINE_ABORTED,
    Completion.ERROR: MaskReason.CALL_ERROR,
    Completion.LATE: MaskReason.LATE,
}


def rows(calls: Sequence[RecordedCall]) -> tuple[TokenRow, ...]:
    """The rows of one session: one for each leaf of its trie.

    A call is owned by the first leaf below it: the one that is reached by going to the earliest child each time. So a
    row owns an unbroken end of its path; rows are numbered by the first call that they own. Where a call is not owned
    its ids are context like any other: mask 0, log-prob 0.0, policy version -1. A call that sampled nothing has
    nothing to own: it is in no segment and makes no row.

    Raises ValueError where the calls are not those of one session, or a delta is broken.
    """
    ordered = in_order(calls)
    prompts = prompt_bytes(ordered)
    parent_of = parents_of(ordered, content_prompts(ordered, prompts))
    kind_of = kinds_of(ordered, parent_of)
    paths = _paths([call for call in ordered if call.sampled_ids], parent_of)
    return tuple(_row(branch, path, owned_from, prompts, kind_of) for branch, (path, owned_from) in enumerate(paths))


def mask_reason(call: RecordedCall, kind: CallKind) -> MaskReason | None:
    """Why a call's own tokens carry no loss, whatever their row; None where they do.

    The first that holds: a changed distribution (it also says that the log-probs cannot be compared with a trainer's;
    temperature 0 is one), a side call, an answer that did not complete.
    """
    if _is_changed(call):
        return MaskReason.CHANGED_DISTRIBUTION
    if kind is CallKind.SIDE:
        return MaskReason.SIDE_CALL
    return _UNFINISHED.get(call.completion)


def _is_changed(call: RecordedCall) -> bool:
    forced = call.tool_choice not in ("auto", "none")
    raw = call.logprob_kind == "raw"
    changed = forced or raw or call.schema_enforced or call.sampling_used.changes_distribution()
    return changed or temperature(call) <= 0.0


def temperature(call: RecordedCall) -> float:
    """Of the distribution that was sampled; 1.0 where nothing was said."""
    used = call.sampling_used.temperature
    return 1.0 if used is None else float(used)


_Path = list[RecordedCall]


def _paths(nodes: Sequence[RecordedCall], parent_of: Mapping[str, str | None]) -> list[tuple[_Path, int]]:
    """(path from the root to a leaf, place of the first call on it that this leaf owns), by that call's index."""
    path_to: dict[str, _Path] = {}
    branches: list[tuple[_Path, int]] = []
    branch_at: dict[str, int] = {}
    for call in nodes:
        parent = parent_of[call.call_id]
        before = path_to[parent] if parent is not None else []
        path = path_to[call.call_id] = [*before, call]
        branch = branch_at.pop(parent, None) if parent is not None else None
        if branch is None:
            branch = len(branches)
            branches.append((path, len(before)))
        else:
            branches[branch] = (path, branches[branch][1])
        branch_at[call.call_id] = branch
    return branches


def _row(
    branch: int,
    path: _Path,
    owned_from: int,
    prompts: Mapping[str, bytes],
    kind_of: Mapping[str, CallKind],
) -> TokenRow:
    leaf = path[-1]
    token_ids = to_ids(prompts[leaf.call_id]) + leaf.sampled_ids
    lead = _lead(path[owned_from:], kind_of)
    reasons: list[MaskReason | None] = [MaskReason.CONTEXT] * len(token_ids)
    logprobs = [0.0] * len(token_ids)
    versions = [-1] * len(token_ids)
    segments = []
    for place, call in enumerate(path):
        start = len(prompts[call.call_id]) // ID_BYTES
        stop = start + len(call.sampled_ids)
        segments.append(Segment(call_id=call.call_id, start=start, stop=stop, owned=place >= owned_from))
        if place >= owned_from:
            reasons[start:stop] = [_reason(call, kind_of[call.call_id], lead)] * (stop - start)
            logprobs[start:stop] = call.logprobs
            versions[start:stop] = [run.policy_version for run in call.versions for _ in range(run.count)]
    return TokenRow(
        session_id=leaf.session_id,
        branch=branch,
        token_ids=token_ids,
        loss_mask=tuple(int(reason is None) for reason in reasons),
        mask_reasons=tuple(reasons),
        logprobs=tuple(logprobs),
        policy_versions=tuple(versions),
        logprob_kind=lead.logprob_kind,
        temperature=temperature(lead),
        segments=tuple(segments),
        images=leaf.images,
    )


def _lead(owned: Sequence[RecordedCall], kind_of: Mapping[str, CallKind]) -> RecordedCall:
    """Whose temperature and kind of log-probs the row has: the first call that it owns and trains, else the first
    from an unchanged distribution, else the first."""
    trained = (call for call in owned if mask_reason(call, kind_of[call.call_id]) is None)
    unchanged = (call for call in owned if not _is_changed(call))
    return next(chain(trained, unchanged), owned[0])


def _reason(call: RecordedCall, kind: CallKind, lead: RecordedCall) -> MaskReason | None:
    """A row has one distribution: a call that was sampled from another one is not trained in it."""
    alike = (temperature(call), call.logprob_kind) == (temperature(lead), lead.logprob_kind)
    return mask_reason(call, kind) if alike else MaskReason.CHANGED_DISTRIBUTION
