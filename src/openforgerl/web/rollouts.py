"""The rollouts as data for the viewer: prompts as the store has them, (parent, cut, new ids), so that a page costs the
new tokens of its sessions. `assets/rollout.js` is the reader of this format."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from itertools import groupby

from openforgerl.records import MaskReason, Receipt, RecordedCall, TokenRow
from openforgerl.tokens.codec import Codec
from openforgerl.web.evidence import AgentLog, SessionEvidence
from openforgerl.web.vocabulary import token_text

FORMAT = 1
LOGPROB_UNIT = 1e-4
"""Log-probs are embedded as whole numbers of this many nats, negated."""

Json = dict[str, object]


class RolloutData:
    """Grows by one session at a time."""

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec
        self._pool: dict[tuple[int, ...], int] = {}
        self._used: set[int] = set()
        self._sessions: list[Json] = []

    def add(self, seen: SessionEvidence) -> None:
        session, ending, grade = seen.session, seen.session.ending, seen.session.grade
        place = {call.call_id: at for at, call in enumerate(seen.calls)}
        self._sessions.append(
            {
                "id": session.session_id,
                "task": session.task_id,
                "group": session.group_id,
                "rollout": session.rollout_id,
                "attempt": session.attempt,
                "harness": session.harness,
                "phase": seen.phase,
                "step": seen.step,
                "labels": dict(session.labels),
                "created": session.created_at,
                "ended_by": str(ending.ended_by) if ending else "open",
                "ended_reason": ending.reason if ending else "",
                "grade": grade.kind if grade else "none",
                "reward": grade.reward if grade else None,
                "grade_reason": grade.reason if grade else "",
                "uses": [[use.phase, use.step, use.reason] for use in seen.uses],
                "unused_for": seen.unused_for,
                "lost_calls": len(seen.lost_calls),
                "calls": [self._call(call, seen, place) for call in seen.calls],
                "rows": [_row(row, seen.receipts.get(row.branch), place) for row in seen.rows],
                "log": _log(seen.log),
            }
        )

    def packed(self) -> str:
        """Base64 of the gzip of the JSON: no character of it means anything to HTML."""
        data = {
            "format": FORMAT,
            "logprob_unit": LOGPROB_UNIT,
            "pool": [list(ids) for ids in self._pool],
            "vocabulary": self._vocabulary(),
            "sessions": self._sessions,
        }
        raw = json.dumps(data, separators=(",", ":")).encode()
        return base64.b64encode(gzip.compress(raw, compresslevel=6, mtime=0)).decode()

    def _call(self, call: RecordedCall, seen: SessionEvidence, place: Mapping[str, int]) -> Json:
        self._used.update(call.prompt.new_ids, call.sampled_ids)
        parent = call.prompt.parent
        return {
            "id": call.call_id,
            "index": call.index,
            "kind": str(seen.kinds[call.call_id]),
            "parent": -1 if parent is None else place[parent],
            "cut": call.prompt.cut,
            "new": self._pool.setdefault(call.prompt.new_ids, len(self._pool)),
            "sampled": call.sampled_ids,
            "logprobs": [round(-value / LOGPROB_UNIT) for value in call.logprobs],
            "logprob_kind": call.logprob_kind,
            "versions": [[run.policy_version, run.count] for run in call.versions],
            "dialect": call.dialect,
            "finish": str(call.finish) if call.finish else "",
            "completion": str(call.completion),
            "delivered": [call.delivered.state, call.delivered.count],
            "stop_string": call.stop_string or "",
            "tool_choice": call.tool_choice,
            "temperature": call.sampling_used.temperature,
            "counters": dict(call.counters),
            "error": call.error,
            "started": round(call.started_at - seen.session.created_at, 3),
            "seconds": round(call.ended_at - call.started_at, 3),
        }

    def _vocabulary(self) -> Json:
        """Of the ids that occur; `kinds` as in TokenKind."""
        ids = sorted(self._used)
        entries = [token_text(self._codec, token_id) for token_id in ids]
        return {"ids": ids, "texts": [text for text, _ in entries], "kinds": [str(kind) for _, kind in entries]}


def _row(row: TokenRow, receipt: Receipt | None, place: Mapping[str, int]) -> Json:
    return {
        "branch": row.branch,
        "length": len(row.token_ids),
        "temperature": row.temperature,
        "logprob_kind": row.logprob_kind,
        "segments": [[place[part.call_id], part.start, part.stop, int(part.owned)] for part in row.segments],
        "reasons": _runs(row.mask_reasons),
        "receipt": receipt and [receipt.policy_version, receipt.tokens, receipt.max_gap, receipt.mean_gap],
    }


def _runs(reasons: Sequence[MaskReason | None]) -> list[tuple[str, int]]:
    """[(reason, how many tokens in a row)]; "" is trained."""
    return [(str(reason or ""), len(list(run))) for reason, run in groupby(reasons)]


def _log(log: AgentLog | None) -> Json | None:
    if log is None:
        return None
    return {"head": log.head, "tail": log.tail, "left_out": log.left_out, "size": log.size}
