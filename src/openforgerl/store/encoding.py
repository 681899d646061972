"""Records as bytes, and back to equal records: pure.

JSON is UTF-8 with `surrogatepass`, so that every Python string, lone surrogates included, comes back as it was.
Log-probs are float32 where each of them is one, else float64: what is read equals what was written, always.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from openforgerl.records import (
    Completion,
    Delivered,
    EndedBy,
    Ending,
    Finish,
    Grade,
    HarnessCall,
    ImageRef,
    Message,
    PromptImage,
    RecordedCall,
    Role,
    Sampling,
    Session,
    Span,
    SpanKind,
    ToolCall,
    ToolSpec,
    VersionRun,
)

HASH_SIZE = 32
ID_SIZE = 4


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def from_json(body: bytes) -> Any:
    return json.loads(body.decode("utf-8", "surrogatepass"))


def content_hash(body: bytes) -> bytes:
    return blake2b(body, digest_size=HASH_SIZE).digest()


def checksum(*parts: str | int | bytes | None) -> bytes:
    """Of a row's columns; each is preceded by its length, so that no two rows of columns run together."""
    digest = blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.digest()


def ids_to_blob(ids: Sequence[int]) -> bytes:
    """Raises OverflowError for an id that is not an int32."""
    return np.array(ids, dtype="<i4").tobytes()


def ids_from_blob(blob: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(blob, dtype="<i4").tolist())


def logprobs_to_blob(logprobs: Sequence[float]) -> bytes:
    exact = np.array(logprobs, dtype="<f8")
    with np.errstate(over="ignore"):
        single = exact.astype("<f4")
    return (single if np.array_equal(single.astype("<f8"), exact) else exact).tobytes()


def logprobs_from_blob(blob: bytes, count: int) -> tuple[float, ...]:
    if len(blob) not in (4 * count, 8 * count):
        raise ValueError(f"{len(blob)} bytes of log-probs for {count} ids")
    return tuple(np.frombuffer(blob, dtype="<f4" if len(blob) == 4 * count else "<f8").tolist())


def message_to_json(message: Message) -> bytes:
    """Canonical: fixed order of keys, empty fields left out."""
    calls = [[call.id, call.name, call.arguments] for call in message.tool_calls]
    fields: dict[str, object] = {
        "role": message.role.value, "text": message.text, "tool_calls": calls, "reasoning": message.reasoning,
        "tool_call_id": message.tool_call_id, "name": message.name, "reasoning_mark": message.reasoning_mark,
        "is_error": message.is_error, "images": [[each.sha256, each.media_type, each.at] for each in message.images],
    }  # fmt: skip
    return to_json({key: value for key, value in fields.items() if value})


def message_from_json(body: bytes) -> Message:
    fields = from_json(body)
    calls = fields.pop("tool_calls", [])
    tool_calls = tuple(ToolCall(id=id_, name=name, arguments=arguments) for id_, name, arguments in calls)
    images = tuple(ImageRef(sha256=digest, media_type=kind, at=at) for digest, kind, at in fields.pop("images", []))
    return Message(role=Role(fields.pop("role")), tool_calls=tool_calls, images=images, **fields)


@lru_cache(maxsize=64)
def tools_to_json(tools: tuple[ToolSpec, ...]) -> bytes:
    """The calls of a session have the same tools."""
    return to_json([[tool.name, tool.definition] for tool in tools])


def tools_from_json(body: bytes) -> tuple[ToolSpec, ...]:
    return tuple(ToolSpec(name=name, definition=definition) for name, definition in from_json(body))


def _sampling_out(sampling: Sampling) -> dict[str, object]:
    said = {name: getattr(sampling, name) for name in Sampling.__slots__ if getattr(sampling, name) is not None}
    return {**said, "stop": list(sampling.stop)}


def _sampling_in(fields: Mapping[str, Any]) -> Sampling:
    return Sampling(**{**fields, "stop": tuple(fields["stop"])})


def session_to_json(session: Session) -> bytes:
    """As it was opened: ending and grade are facts of their own."""
    return to_json(
        {
            "task_id": session.task_id,
            "group_id": session.group_id,
            "rollout_id": session.rollout_id,
            "attempt": session.attempt,
            "harness": session.harness,
            "sampling": _sampling_out(session.sampling),
            "labels": dict(session.labels),
            "created_at": session.created_at,
        }
    )


def session_from_json(session_id: str, body: bytes, ending: Ending | None, grade: Grade | None) -> Session:
    fields = from_json(body)
    sampling = _sampling_in(fields.pop("sampling"))
    return Session(session_id=session_id, sampling=sampling, ending=ending, grade=grade, **fields)


def ending_to_json(ending: Ending) -> bytes:
    return to_json({"ended_by": ending.ended_by.value, "reason": ending.reason, "counters": dict(ending.counters)})


def ending_from_json(body: bytes) -> Ending:
    fields = from_json(body)
    counters = fields.get("counters", {})  # endings of the first version have none
    return Ending(ended_by=EndedBy(fields["ended_by"]), reason=fields["reason"], counters=counters)


def grade_to_json(grade: Grade) -> bytes:
    return to_json({"kind": grade.kind, "reward": grade.reward, "reason": grade.reason})


def grade_from_json(body: bytes) -> Grade:
    return Grade(**from_json(body))


def intent_to_json(call: HarnessCall) -> bytes:
    """Without messages and tools: the committed call has them, and the digest names them until then."""
    request = call.request
    return to_json(
        {
            "dialect": call.dialect,
            "received_at": call.received_at,
            "digest": call.digest,
            "labels": dict(call.labels),
            "model": request.model,
            "sampling": _sampling_out(request.sampling),
            "tool_choice": request.tool_choice,
            "ignored": list(request.ignored),
            "messages": len(request.messages),
            "tools": len(request.tools),
        }
    )


_PLAIN = (
    "dialect", "logprob_kind", "model_asked", "digest", "template_hash", "tokenizer_hash", "started_at", "ended_at",
    "stop_string", "ends_turn", "tool_choice", "output_schema", "schema_enforced", "error",
)  # fmt: skip


def call_to_json(call: RecordedCall) -> bytes:
    """What has no column of its own."""
    return to_json(
        {
            **{name: getattr(call, name) for name in _PLAIN},
            "spans": [[span.kind.value, span.start, span.stop, span.exact] for span in call.spans],
            "finish": call.finish.value if call.finish else None,
            "completion": call.completion.value,
            "delivered": [call.delivered.state, call.delivered.count],
            "versions": [[run.policy_version, run.count] for run in call.versions],
            "sampling_asked": _sampling_out(call.sampling_asked),
            "sampling_used": _sampling_out(call.sampling_used),
            "labels": dict(call.labels),
            "counters": dict(call.counters),
            **_images_out(call),
        }
    )


def _images_out(call: RecordedCall) -> dict[str, object]:
    """Left out where there are none, as in calls of the first version."""
    if not call.processor_hash:
        return {}
    images = [[each.sha256, each.grid, each.at, each.count] for each in call.images]
    return {"processor_hash": call.processor_hash, "images": images}


def call_fields(body: bytes) -> dict[str, Any]:
    """The keyword arguments of RecordedCall that `call_to_json` wrote."""
    fields = from_json(body)
    state, count = fields["delivered"]
    return {
        **fields,
        "spans": tuple(Span(kind=SpanKind(k), start=a, stop=b, exact=exact) for k, a, b, exact in fields["spans"]),
        "finish": Finish(fields["finish"]) if fields["finish"] is not None else None,
        "completion": Completion(fields["completion"]),
        "delivered": Delivered(state=state, count=count),
        "versions": tuple(VersionRun(policy_version=version, count=n) for version, n in fields["versions"]),
        "sampling_asked": _sampling_in(fields["sampling_asked"]),
        "sampling_used": _sampling_in(fields["sampling_used"]),
        "processor_hash": fields.get("processor_hash", ""),
        "images": tuple(
            PromptImage(sha256=digest, grid=tuple(grid), at=at, count=count)
            for digest, grid, at, count in fields.get("images", ())
        ),
    }
