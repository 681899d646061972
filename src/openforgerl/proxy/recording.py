"""What is recorded of a call (pure): the sampling that is used, and the RecordedCall of an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from openforgerl.errors import AssemblyError, ContextFull
from openforgerl.proxy.answer import Answer
from openforgerl.records import (
    Completion,
    Delivered,
    Finish,
    HarnessCall,
    Message,
    RecordedCall,
    Role,
    Sampling,
)
from openforgerl.tokens.assembly import Prompt
from openforgerl.tokens.parsing import ParsedAnswer

NOTHING = Message(role=Role.ASSISTANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A call that is ready to be sampled."""

    prompt: Prompt
    index: int
    sampling: Sampling
    """As used."""
    started_at: float
    """Unix time, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the sampling of a call ended."""

    completion: Completion
    delivered: Delivered
    parsed: ParsedAnswer | None = None
    finish: Finish | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What every record of a proxy carries."""

    logprob_kind: str
    template_hash: str
    tokenizer_hash: str
    enforces_schema: bool
    processor_hash: str


def used_sampling(asked: Sampling, pins: Sampling, cap: int | None, room: int) -> Sampling:
    """Pins win; a temperature that nobody gave is 1; the answer fits the context."""
    used = asked.pinned_by(pins)
    caps = [limit for limit in (used.max_tokens, cap, room) if limit is not None]
    temperature = 1.0 if used.temperature is None else used.temperature
    return replace(used, temperature=temperature, max_tokens=max(1, min(caps)))


def context_full(prompt_tokens: int, context_length: int) -> AssemblyError:
    """In the words that harnesses know, so that their own compaction starts."""
    message = (
        f"This model's maximum context length is {context_length} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens. Please reduce the length of the messages."
    )
    full = ContextFull(prompt_tokens=prompt_tokens, context_length=context_length)
    return AssemblyError(message, code="context_length_exceeded", context_full=full)


def _logprob_kind(kind: str, used: Sampling) -> str:
    """At temperature 1 what is raw is what was sampled."""
    return "sampled" if kind == "raw" and used.temperature == 1.0 else kind


def recorded(
    intent: HarnessCall, planned: Planned, answer: Answer, outcome: Outcome, provenance: Provenance, ended_at: float
) -> RecordedCall:
    request, parsed = intent.request, outcome.parsed
    counters = dict(planned.prompt.counters)
    if request.output_schema and not provenance.enforces_schema:
        counters["schemas_not_enforced"] = 1
    for name, number in (parsed.counters if parsed else {}).items():
        counters[name] = counters.get(name, 0) + number
    return RecordedCall(
        call_id=intent.call_id,
        session_id=intent.session_id,
        index=planned.index,
        dialect=intent.dialect,
        prompt=planned.prompt.delta,
        messages=planned.prompt.messages,
        tools=request.tools,
        sampled_ids=tuple(answer.ids),
        logprobs=tuple(answer.logprobs),
        logprob_kind=_logprob_kind(provenance.logprob_kind, planned.sampling),
        spans=parsed.spans if parsed else (),
        answer=parsed.answer if parsed else NOTHING,
        finish=outcome.finish,
        completion=outcome.completion,
        delivered=outcome.delivered,
        versions=tuple(answer.versions),
        sampling_asked=request.sampling,
        sampling_used=planned.sampling,
        model_asked=request.model,
        digest=intent.digest,
        template_hash=provenance.template_hash,
        tokenizer_hash=provenance.tokenizer_hash,
        started_at=planned.started_at,
        ended_at=ended_at,
        stop_string=answer.parser.stop_string,
        ends_turn=bool(parsed and parsed.ends_turn),
        tool_choice=request.tool_choice,
        output_schema=request.output_schema,
        schema_enforced=bool(request.output_schema) and provenance.enforces_schema,
        labels=intent.labels,
        counters=counters,
        error=outcome.error,
        images=planned.prompt.images,
        processor_hash=provenance.processor_hash,
    )
