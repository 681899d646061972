"""The dialect of OpenAI's Chat Completions: paths, keys, errors and the model listing."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from openforgerl.dialects.base import HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.chat_events import ChatRenderer, error_body
from openforgerl.dialects.chat_request import read_request
from openforgerl.errors import DialectError, OpenForgeError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDialect:
    """A Dialect. Both styles of base URL are right: with and without /v1."""

    name: str = "chat"
    model_name: str = "policy"
    """The name in the model listing; every name that is asked for is answered."""

    def claims(self, request: HttpRequest) -> bool:
        path = _path(request)
        if path == "chat/completions":
            return True
        return not _is_another_vendors(request) and (path in ("", "models") or path.startswith("models/"))

    def key(self, request: HttpRequest) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return key.strip()
        return request.headers.get("x-api-key") or request.headers.get("api-key") or ""

    def parse(self, request: HttpRequest) -> ParsedCall | HttpAnswer:
        path = _path(request)
        if request.method == "HEAD":
            return HttpAnswer(status=200, body=b"")
        if request.method == "GET" and path != "chat/completions":
            return HttpAnswer(status=200, body=self._listing(path))
        if request.method != "POST" or path != "chat/completions":
            raise DialectError(f"{request.method} {request.path}: send POST .../chat/completions", http_status=405)
        call = read_request(request.body, request.memory)
        renderer = ChatRenderer(model=call.request.model or self.model_name, include_usage=call.include_usage)
        return ParsedCall(request=call.request, stream=call.stream, renderer=renderer)

    def failure(self, error: OpenForgeError) -> HttpAnswer:
        field = error.field if isinstance(error, DialectError) else None
        body = error_body(str(error), status=error.http_status, code=error.code, param=field)
        return HttpAnswer(status=error.http_status, body=orjson.dumps(body))

    def _listing(self, path: str) -> bytes:
        name = path.removeprefix("models").removeprefix("/")
        entry = {"id": name or self.model_name, "object": "model", "created": 0, "owned_by": "openforgerl"}
        return orjson.dumps(entry if name else {"object": "list", "data": [entry]})


def _is_another_vendors(request: HttpRequest) -> bool:
    """A listing is asked for at one path by all: the kind of key tells the client."""
    headers = request.headers
    key_only = "x-api-key" in headers and "authorization" not in headers
    return key_only or "anthropic-version" in headers or "x-goog-api-key" in headers


def _path(request: HttpRequest) -> str:
    path = request.path.strip("/")
    return path.removeprefix("v1").removeprefix("/") if path == "v1" or path.startswith("v1/") else path
