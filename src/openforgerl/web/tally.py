"""Counts over all sessions of a run: endings and grades by phase, counters of law 7, log-prob gaps."""

from __future__ import annotations

from collections import Counter, defaultdict

from openforgerl.records import Completion, Finish, Session
from openforgerl.web.evidence import SessionEvidence

LOG_CAP = 1_000_000
"""Output that a runtime keeps of an agent by default."""


class Tally:
    """Grows by one session at a time."""

    def __init__(self) -> None:
        self.sessions = 0
        self.calls = 0
        self.rows = 0
        self.settled = 0
        """Sessions with a use: their step is committed."""
        self.tokenizers: set[str] = set()
        self.harnesses: Counter[str] = Counter()
        self.started_at = 0.0
        self.endings: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.grades: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.rewards: defaultdict[str, list[float]] = defaultdict(list)
        self.ending_reasons: Counter[tuple[str, str, str]] = Counter()
        """(phase, ended_by, reason)"""
        self.grade_reasons: Counter[tuple[str, str, str]] = Counter()
        self.counters: Counter[str] = Counter()
        self.gaps: list[float] = []
        """The largest gap of each row with a receipt."""
        self.gap_sum = 0.0
        self.gap_tokens = 0
        self.sampled_rows = 0

    def add(self, seen: SessionEvidence) -> None:
        self.sessions += 1
        phase = seen.step if seen.phase == "evaluation" and seen.step else seen.phase
        self.calls += len(seen.calls)
        self.rows += len(seen.rows)
        self.settled += bool(seen.uses)
        self.harnesses[seen.session.harness or "unnamed"] += 1
        self.started_at = min(self.started_at or seen.session.created_at, seen.session.created_at)
        self._add_ending(phase, seen.session)
        self._add_grade(phase, seen.session)
        self._add_counters(seen)
        self._add_receipts(seen)

    def _add_ending(self, phase: str, session: Session) -> None:
        ending = session.ending
        ended_by = str(ending.ended_by) if ending else "open"
        self.endings[phase][ended_by] += 1
        if ending and ending.reason:
            self.ending_reasons[phase, ended_by, ending.reason] += 1

    def _add_grade(self, phase: str, session: Session) -> None:
        grade = session.grade
        kind = grade.kind if grade else "none"
        self.grades[phase][kind] += 1
        if grade and grade.reward is not None:
            self.rewards[phase].append(grade.reward)
        if grade and grade.reason:
            self.grade_reasons[phase, kind, grade.reason] += 1

    def _add_counters(self, seen: SessionEvidence) -> None:
        self.counters["retried_rollouts"] += seen.session.attempt > 0
        self.counters["lost_calls"] += len(seen.lost_calls)
        self.counters["capped_logs"] += bool(seen.log and seen.log.size >= LOG_CAP)
        self.counters.update(_beside_calls(seen))
        for call in seen.calls:
            self.tokenizers.add(call.tokenizer_hash)
            self.counters.update(call.counters)
            self.counters[f"calls_{call.completion}"] += call.completion is not Completion.COMPLETE
            self.counters["cut_by_length"] += call.finish is Finish.LENGTH
            self.counters["delivered_in_part"] += call.delivered.state == "prefix"
            self.counters["delivery_unknown"] += call.delivered.state == "unknown"

    def _add_receipts(self, seen: SessionEvidence) -> None:
        """Of sampled rows; a scripted teacher's log-probs are no distribution's."""
        sampled = [row for row in seen.rows if row.logprob_kind == "sampled"]
        self.sampled_rows += len(sampled)
        for row in sampled:
            receipt = seen.receipts.get(row.branch)
            if receipt is not None:
                self.gaps.append(receipt.max_gap)
                self.gap_sum += receipt.mean_gap * receipt.tokens
                self.gap_tokens += receipt.tokens


_OF_CALLS = {"calls", "prompt_tokens", "sampled_tokens", *Completion}


def _beside_calls(seen: SessionEvidence) -> dict[str, int]:
    """What was counted when the session ended and stands in no call."""
    counted = seen.session.ending.counters if seen.session.ending else {}
    in_calls = {name for call in seen.calls for name in call.counters}
    return {name: number for name, number in counted.items() if name not in _OF_CALLS | in_calls}
