"""vLLM's /v1/completions with token ids for the prompt and token ids in the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from openforgerl.engines.limits import refusal
from openforgerl.engines.wire import Asked, Json, Ledger, Piece, Question, event, field_of, is_done, list_of

_LEAST_TEMPERATURE = 0.01
_CANDIDATES = 5
_ECHO = b'"prompt_token_ids":'


class VllmWire:
    path = "/v1/completions"
    health_path = "/health"

    def body(self, asked: Asked) -> bytes:
        used, request = asked.request.sampling, asked.request
        temperature = 1.0 if used.temperature is None else used.temperature
        if 0 < temperature < _LEAST_TEMPERATURE:
            raise refusal(f"temperature: {temperature} is below {_LEAST_TEMPERATURE}, the least that vLLM samples at")
        body: dict[str, object] = {
            "model": asked.model,
            "prompt": orjson.Fragment(asked.prompt_json),
            "stream": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "logprobs": 1,
            "max_tokens": asked.room,
            "temperature": temperature,
            "top_p": 1.0 if used.top_p is None else used.top_p,
            "top_k": -1 if used.top_k in (None, 0) else used.top_k,
            "min_p": used.min_p or 0.0,
            "presence_penalty": used.presence_penalty or 0.0,
            "frequency_penalty": used.frequency_penalty or 0.0,
            "repetition_penalty": 1.0 if used.repetition_penalty is None else used.repetition_penalty,
            # The server's own end-of-turn id might be none of the request's.
            "ignore_eos": True,
            "stop_token_ids": request.stop_ids,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "request_id": f"{request.request_id}-{len(asked.before)}",
            # No prefix that older weights computed is found under this name.
            "cache_salt": f"policy-{asked.policy_version}",
        }
        if asked.seed is not None:
            body["seed"] = asked.seed
        if request.output_schema:
            body["structured_outputs"] = {"json": orjson.loads(request.output_schema)}
        return orjson.dumps(body)

    def reader(self, asked: Asked) -> VllmReader:
        return VllmReader(asked)

    def update(self, folder: Path, policy_version: int) -> Sequence[Question]:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        return (
            Question(path="/collective_rpc", body=reload),
            # Requests of others may run: they are computed anew, for blocks in use cannot be dropped.
            Question(path="/reset_prefix_cache?reset_running_requests=true", body={}, good="success"),
        )

    def probe(self, model: str, temperature: float) -> Json:
        return {
            "model": model, "prompt": [1, 2, 3], "max_tokens": 1, "temperature": temperature, "top_p": 1.0,
            "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True, "logprobs": _CANDIDATES,
            "return_tokens_as_token_ids": True,
        }  # fmt: skip

    def probed(self, answer: bytes) -> Mapping[object, float]:
        choices = list_of(event(answer), "choices")
        tops = list_of(field_of(choices[0], "logprobs"), "top_logprobs") if choices else []
        found = tops[0] if tops and isinstance(tops[0], dict) else {}
        return {key: value for key, value in found.items() if isinstance(value, float | int)}


class VllmReader:
    """One stream."""

    def __init__(self, asked: Asked) -> None:
        self._ledger = Ledger(asked)
        self._prompt = asked.prompt_json
        self._echoed = False

    def read(self, data: bytes) -> Piece:
        if is_done(data):
            return Piece()
        choices = list_of(event(self._without_echo(data)), "choices")
        if not choices:
            return Piece()
        choice = choices[0]
        if not self._echoed:
            self._ledger.check_echo(field_of(choice, "prompt_token_ids"))
            self._echoed = True
        ids, logprobs = self._ledger.take(
            list_of(choice, "token_ids"), list_of(field_of(choice, "logprobs"), "token_logprobs")
        )
        finish = self._ledger.finish(field_of(choice, "finish_reason"), field_of(choice, "stop_reason"))
        return Piece(ids=ids, logprobs=logprobs, finish=finish)

    def _without_echo(self, data: bytes) -> bytes:
        """The echo of a long prompt takes milliseconds to parse; its bytes cost next to nothing to compare."""
        start = data.find(_ECHO) + len(_ECHO)
        if self._echoed or start < len(_ECHO) or not data.startswith(self._prompt, start):
            return data
        self._echoed = True
        return data[:start] + b"null" + data[start + len(self._prompt) :]
