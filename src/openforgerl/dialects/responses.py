"""The dialect of OpenAI's Responses: paths, keys, errors and the count of a prompt. Models are listed by `chat`."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.responses_events import ResponsesRenderer, error_body
from openforgerl.dialects.responses_request import read_request
from openforgerl.errors import DialectError, OpenForgeError

_CALL = "responses"
_COUNT = "responses/input_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesDialect:
    """A Dialect. Both styles of base URL are right: with and without /v1."""

    name: str = "responses"
    model_name: str = "policy"
    """What an answer says where the request names no model; every name that is asked for is answered."""

    def claims(self, request: HttpRequest) -> bool:
        path = _path(request)
        return path == _CALL or path.startswith(_CALL + "/")

    def key(self, request: HttpRequest) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return key.strip()
        return request.headers.get("api-key") or request.headers.get("x-api-key") or ""

    def parse(self, request: HttpRequest) -> ParsedCall | CountCall | HttpAnswer:
        path = _path(request)
        if request.method == "HEAD":
            return HttpAnswer(status=200, body=b"")
        if path not in (_CALL, _COUNT):
            raise _unknown(request, path)
        if request.method != "POST":
            raise DialectError(f"{request.method} {request.path}: send POST .../v1/responses", http_status=405)
        call = read_request(request.body, request.memory)
        if path == _COUNT:
            return CountCall(request=call.request, answer=_count)
        renderer = ResponsesRenderer(
            model=call.request.model or self.model_name,
            routes=call.routes,
            echo=call.echo,
            summarizes=call.summarizes,
        )
        return ParsedCall(request=call.request, stream=call.stream, renderer=renderer)

    def failure(self, error: OpenForgeError) -> HttpAnswer:
        field = error.field if isinstance(error, DialectError) else None
        body = error_body(str(error), status=error.http_status, code=error.code, param=field)
        return HttpAnswer(status=error.http_status, body=orjson.dumps(body))


def _count(tokens: int) -> HttpAnswer:
    return HttpAnswer(status=200, body=orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens}))


def _unknown(request: HttpRequest, path: str) -> DialectError:
    if path == "responses/compact":
        why = "histories are not compacted here; ask for a summary in a user message"
    else:
        why = "this server keeps no responses; send the whole conversation to POST .../v1/responses"
    return DialectError(f"{request.method} {request.path}: {why}", code="not_found", http_status=404)


def _path(request: HttpRequest) -> str:
    path = request.path.strip("/")
    return path.removeprefix("v1").removeprefix("/") if path.startswith("v1/") else path
