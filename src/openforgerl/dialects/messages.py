"""The dialect of Anthropic's Messages: paths, keys, errors, the count of a prompt and the model listing."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.messages_events import MessagesRenderer, error_body
from openforgerl.dialects.messages_request import read_request
from openforgerl.errors import DialectError, OpenForgeError

_CALL = "messages"
_COUNT = "messages/count_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDialect:
    """A Dialect. Every style of base URL is right: with and without /v1."""

    name: str = "messages"
    model_name: str = "policy"
    """The name in the model listing; every name that is asked for is answered."""

    def claims(self, request: HttpRequest) -> bool:
        path = _path(request)
        if path in (_CALL, _COUNT):
            return True
        return _is_anthropic(request) and (path in ("", "models") or path.startswith("models/"))

    def key(self, request: HttpRequest) -> str:
        if key := request.headers.get("x-api-key"):
            return key
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def parse(self, request: HttpRequest) -> ParsedCall | CountCall | HttpAnswer:
        path = _path(request)
        if request.method == "HEAD":
            return HttpAnswer(status=200, body=b"")
        if request.method == "GET" and path not in (_CALL, _COUNT):
            return HttpAnswer(status=200, body=self._listing(path))
        if request.method != "POST" or path not in (_CALL, _COUNT):
            raise DialectError(f"{request.method} {request.path}: send POST .../v1/messages", http_status=405)
        call = read_request(request.body, request.memory, counts=path == _COUNT)
        if path == _COUNT:
            return CountCall(request=call.request, answer=_count)
        model = call.request.model or self.model_name
        renderer = MessagesRenderer(model=model, shows_thinking=call.shows_thinking)
        return ParsedCall(request=call.request, stream=call.stream, renderer=renderer)

    def failure(self, error: OpenForgeError) -> HttpAnswer:
        body = error_body(str(error), status=error.http_status, code=error.code, full=error.context_full)
        return HttpAnswer(status=error.http_status, body=orjson.dumps(body))

    def _listing(self, path: str) -> bytes:
        name = path.removeprefix("models").removeprefix("/")
        shown = name or self.model_name
        entry = {
            "type": "model",
            "id": shown,
            "display_name": shown,
            "created_at": "1970-01-01T00:00:00Z",
            "lifecycle": "active",
        }
        listing = {"data": [entry], "has_more": False, "first_id": shown, "last_id": shown}
        return orjson.dumps(entry if name else listing)


def _count(tokens: int) -> HttpAnswer:
    return HttpAnswer(status=200, body=orjson.dumps({"input_tokens": tokens}))


def _is_anthropic(request: HttpRequest) -> bool:
    """The vendor's SDKs always send the version; a client without an SDK may send its kind of key only."""
    headers = request.headers
    key_only = "x-api-key" in headers and "authorization" not in headers and "x-goog-api-key" not in headers
    return "anthropic-version" in headers or key_only


def _path(request: HttpRequest) -> str:
    """Without leading v1: a base URL that ends with it gets a second one from the SDK."""
    path = request.path.strip("/")
    while path == "v1" or path.startswith("v1/"):
        path = path.removeprefix("v1").removeprefix("/")
    return path
