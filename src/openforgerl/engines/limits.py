"""How long an answer may get: the one rule that every engine follows. A prompt is never cut."""

from __future__ import annotations

from openforgerl.errors import EngineError
from openforgerl.records import GenerateRequest


def refusal(message: str, *, code: str = "invalid_request") -> EngineError:
    """An error of the request itself: the same request fails again, so nobody should retry it."""
    error = EngineError(message)
    error.retryable = False
    error.http_status = 400
    error.code = code
    return error


def answer_limit(request: GenerateRequest, context_length: int) -> int:
    """Most ids of the answer, at least 1. Raises EngineError for an empty prompt or one that leaves no room."""
    prompt, asked = len(request.prompt_ids), request.sampling.max_tokens
    if not prompt:
        raise refusal(f"request {request.request_id}: the prompt has no ids")
    if prompt >= context_length:
        raise refusal(
            f"request {request.request_id}: a prompt of {prompt} ids leaves no room in a context of {context_length}",
            code="context_length_exceeded",
        )
    if asked is not None and asked < 1:
        raise refusal(f"request {request.request_id}: max_tokens is {asked}; it must be at least 1")
    room = context_length - prompt
    return room if asked is None else min(room, asked)
