"""SGLang's /generate with input ids, log-probs and a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from openforgerl.engines.wire import Asked, Json, Ledger, Piece, Question, event, field_of, is_done, list_of
from openforgerl.errors import EngineError

_CANDIDATES = 5


class SglangWire:
    path = "/generate"
    health_path = "/health"

    def body(self, asked: Asked) -> bytes:
        used, request = asked.request.sampling, asked.request
        sampling: dict[str, object] = {
            "max_new_tokens": asked.room,
            "temperature": 1.0 if used.temperature is None else used.temperature,
            "top_p": 1.0 if used.top_p is None else used.top_p,
            "top_k": -1 if used.top_k in (None, 0) else used.top_k,
            "min_p": used.min_p or 0.0,
            "presence_penalty": used.presence_penalty or 0.0,
            "frequency_penalty": used.frequency_penalty or 0.0,
            "repetition_penalty": 1.0 if used.repetition_penalty is None else used.repetition_penalty,
            # The server's own end-of-turn id might be none of the request's.
            "ignore_eos": True,
            "stop_token_ids": request.stop_ids,
            "no_stop_trim": True,
            "skip_special_tokens": False,
        }
        if asked.seed is not None:
            sampling["sampling_seed"] = asked.seed
        if request.output_schema:
            sampling["json_schema"] = request.output_schema
        return orjson.dumps(
            {
                "rid": f"{request.request_id}-{len(asked.before)}",
                "input_ids": orjson.Fragment(asked.prompt_json),
                "sampling_params": sampling,
                "return_logprob": True,
                "return_prompt_token_ids": True,
                "stream": True,
                # No prefix that older weights computed is found under this name.
                "extra_key": f"policy-{asked.policy_version}",
            }
        )

    def reader(self, asked: Asked) -> SglangReader:
        return SglangReader(asked)

    def update(self, folder: Path, policy_version: int) -> Sequence[Question]:
        body = {"model_path": str(folder), "flush_cache": True, "weight_version": str(policy_version)}
        return (Question(path="/update_weights_from_disk", body=body, good="success"),)

    def probe(self, model: str, temperature: float) -> Json:
        sampling = {"max_new_tokens": 1, "temperature": temperature, "top_p": 1.0, "top_k": -1, "ignore_eos": True}
        return {
            "input_ids": [1, 2, 3], "sampling_params": sampling, "return_logprob": True,
            "top_logprobs_num": _CANDIDATES,
        }  # fmt: skip

    def probed(self, answer: bytes) -> Mapping[object, float]:
        tops = list_of(field_of(event(answer), "meta_info"), "output_top_logprobs")
        found = tops[0] if tops and isinstance(tops[0], list) else []
        return {pair[1]: pair[0] for pair in found if isinstance(pair, list) and isinstance(pair[0], float)}


class SglangReader:
    """One stream: each event repeats all ids so far, or brings the new ones (`--incremental-streaming-output`)."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._ledger = Ledger(asked)
        self._echoed = False

    def read(self, data: bytes) -> Piece:
        if is_done(data):
            return Piece()
        body = event(data)
        meta = field_of(body, "meta_info")
        self._check_echo(body, meta)
        reason = field_of(meta, "finish_reason")
        pairs = self._new(list_of(meta, "output_token_logprobs"), field_of(meta, "completion_tokens"))
        ids, logprobs = self._ledger.take([pair[1] for pair in pairs], [pair[0] for pair in pairs])
        finish = self._ledger.finish(field_of(reason, "type"), field_of(reason, "matched"))
        return Piece(ids=ids, logprobs=logprobs, finish=finish)

    def _check_echo(self, body: Json, meta: object) -> None:
        """Releases that cannot give the ids of a prompt at least count them."""
        if self._echoed:
            return
        echoed = field_of(meta, "prompt_token_ids") or field_of(body, "prompt_token_ids")
        if echoed is None and field_of(meta, "prompt_tokens") == len(self._asked.prompt):
            echoed = list(self._asked.prompt)
        self._ledger.check_echo(echoed)
        self._echoed = True

    def _new(self, pairs: list[object], total: object) -> list[tuple[object, object]]:
        """The pairs (log-prob, id) that were not seen before. Raises EngineError where some are missing."""
        seen = self._ledger.count
        if not isinstance(total, int) or total not in (len(pairs), seen + len(pairs)):
            raise EngineError(
                f"request {self._asked.request.request_id}: the engine counts {total} sampled ids, but gave "
                f"{len(pairs)} log-probs after {seen} ids"
            )
        new = pairs[seen:] if total == len(pairs) else pairs
        return [_pair(pair) for pair in new]


def _pair(value: object) -> tuple[object, object]:
    if not isinstance(value, list) or len(value) < 2:
        raise EngineError(f"the engine sent the log-prob {str(value)[:80]}, which is no [log-prob, id, text]")
    return value[0], value[1]
