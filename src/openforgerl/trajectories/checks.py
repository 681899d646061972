"""Laws 1 and 2 checked on finished rows, independently of how they were made. `openforgerl verify` runs this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openforgerl.records import Completion, MaskReason, RecordedCall, Segment, TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """Where the sampled tokens of a session are: sampled = trained_mask + the sum of masked."""

    sampled: int
    """Tokens of all committed calls."""
    trained_mask: int
    """Owned by a row with mask 1. Whether that row is used is decided later."""
    masked: Mapping[MaskReason, int]
    """Owned by a row with mask 0, by reason."""

    @property
    def balanced(self) -> bool:
        return self.sampled == self.trained_mask + sum(self.masked.values())


def accounting(calls: Sequence[RecordedCall], rows: Sequence[TokenRow]) -> Accounting:
    """Counts tokens of owned segments as they stand; `check_rows` says whether they stand right."""
    reasons: Counter[MaskReason | None] = Counter()
    for row in rows:
        for segment in row.segments:
            if segment.owned:
                reasons.update(row.mask_reasons[segment.start : segment.stop])
    trained = reasons.pop(None, 0)
    masked = {reason: count for reason, count in reasons.items() if reason is not None}
    return Accounting(sampled=sum(len(call.sampled_ids) for call in calls), trained_mask=trained, masked=masked)


def check_rows(calls: Sequence[RecordedCall], rows: Sequence[TokenRow]) -> tuple[str, ...]:
    """What is wrong with the rows of one session, one sentence each; empty where laws 1 and 2 hold.

    Raises ValueError where the calls themselves do not fit together.
    """
    whole = _whole_ids(calls)
    by_id = {call.call_id: call for call in calls}
    findings = list(_ownership(calls, rows))
    if sorted(row.branch for row in rows) != list(range(len(rows))):
        findings.append(f"branches are {[row.branch for row in rows]}, not 0 to {len(rows) - 1}")
    for row in rows:
        findings += (f"row {row.session_id}/{row.branch}: {finding}" for finding in _row_findings(row, by_id, whole))
    return tuple(findings)


def _whole_ids(calls: Sequence[RecordedCall]) -> dict[str, tuple[int, ...]]:
    """Call id -> prompt + sampled ids, from the deltas as they are defined."""
    whole: dict[str, tuple[int, ...]] = {}
    for call in sorted(calls, key=lambda call: call.index):
        before = () if call.prompt.parent is None else whole.get(call.prompt.parent, ())
        kept = before[: call.prompt.cut]
        if len(kept) != call.prompt.cut:
            raise ValueError(
                f"call {call.call_id}: its prompt takes {call.prompt.cut} ids, its parent has {len(before)}"
            )
        whole[call.call_id] = kept + call.prompt.new_ids + call.sampled_ids
    return whole


def _ownership(calls: Sequence[RecordedCall], rows: Sequence[TokenRow]) -> Iterator[str]:
    owners = Counter(segment.call_id for row in rows for segment in row.segments if segment.owned)
    for call in calls:
        expected = 1 if call.sampled_ids else 0
        if owners[call.call_id] != expected:
            yield f"call {call.call_id} with {len(call.sampled_ids)} sampled ids is owned {owners[call.call_id]} times"


def _row_findings(
    row: TokenRow, calls: Mapping[str, RecordedCall], whole: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    end = 0
    for segment in row.segments:
        call = calls.get(segment.call_id)
        if call is None or call.session_id != row.session_id:
            yield f"call {segment.call_id} is not of this session"
            continue
        if segment.start < end:
            yield f"the segment of call {call.call_id} begins at {segment.start}, before {end}"
        yield from _context_of(row, end, segment.start)
        end = segment.stop
        yield from _segment_findings(row, segment, call, whole[call.call_id])
    if end != len(row.token_ids):
        yield f"it has {len(row.token_ids)} ids, its last segment ends at {end}"


def _segment_findings(row: TokenRow, segment: Segment, call: RecordedCall, whole: tuple[int, ...]) -> Iterator[str]:
    if segment.stop != len(whole) or segment.stop - segment.start != len(call.sampled_ids):
        yield f"call {call.call_id} was sampled at {len(whole) - len(call.sampled_ids)}..{len(whole)}, not {segment}"
    if row.token_ids[: segment.stop] != whole:
        yield f"call {call.call_id} does not stand behind exactly the ids that the engine saw"
    if not segment.owned:
        yield from _context_of(row, segment.start, segment.stop)
        return
    part = slice(segment.start, segment.stop)
    if row.logprobs[part] != call.logprobs:
        yield f"call {call.call_id} has other log-probs than were recorded"
    if row.policy_versions[part] != tuple(run.policy_version for run in call.versions for _ in range(run.count)):
        yield f"call {call.call_id} has other policy versions than were recorded"
    yield from _mask_findings(row, segment, call)


def _mask_findings(row: TokenRow, segment: Segment, call: RecordedCall) -> Iterator[str]:
    part = slice(segment.start, segment.stop)
    reasons = set(row.mask_reasons[part])
    if len(reasons) > 1 or MaskReason.CONTEXT in reasons:
        yield f"call {call.call_id} is owned, but its mask has not one reason: {reasons}"
    if None in reasons and call.completion is not Completion.COMPLETE:
        yield f"call {call.call_id} ({call.completion}) did not complete, but is trained"
    if reasons - {MaskReason.CHANGED_DISTRIBUTION} and not _is_of_the_row(row, call):
        yield f"call {call.call_id} was sampled from another distribution than its row says"


def _is_of_the_row(row: TokenRow, call: RecordedCall) -> bool:
    used = call.sampling_used
    asked = 1.0 if used.temperature is None else used.temperature
    own = asked == row.temperature > 0 and call.logprob_kind == row.logprob_kind != "raw"
    return own and call.tool_choice in ("auto", "none") and not used.changes_distribution()


def _context_of(row: TokenRow, start: int, stop: int) -> Iterator[str]:
    """Ids that the row does not own carry nothing."""
    part = slice(start, stop)
    reasons, logprobs, versions = set(row.mask_reasons[part]), set(row.logprobs[part]), set(row.policy_versions[part])
    if not (reasons <= {MaskReason.CONTEXT} and logprobs <= {0.0} and versions <= {-1}):
        yield f"ids {start}..{stop} are context, but carry a loss, a log-prob or a policy version"
