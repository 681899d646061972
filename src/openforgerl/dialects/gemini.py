"""The dialect of Gemini's generateContent: paths, keys, errors, the count of a prompt and the model listing."""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson

from openforgerl.dialects.base import CountCall, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.gemini_events import GeminiRenderer, error_body
from openforgerl.dialects.gemini_request import read_count, read_request
from openforgerl.errors import DialectError, OpenForgeError

_VERSIONED = re.compile(r"/*(?:(v1beta|v1alpha|v1)(?:/|$))?(.*)", re.DOTALL)
_MODEL = re.compile(r"(?:.*/)?(?:models|tunedModels)/([^/:]+)(?::(\w+))?")
_CALLS = ("generateContent", "streamGenerateContent")
_COUNT = "countTokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiDialect:
    """A Dialect. The base URL has no version: the client puts v1beta, v1alpha or v1 behind it."""

    name: str = "gemini"
    model_name: str = "policy"
    """The name in the model listing; every name that is asked for is answered."""

    def claims(self, request: HttpRequest) -> bool:
        version, path = _split(request)
        if version in ("v1beta", "v1alpha") or _method(path) is not None:
            return True
        return "x-goog-api-key" in request.headers and (path in ("", "models") or path.startswith("models/"))

    def key(self, request: HttpRequest) -> str:
        if key := request.headers.get("x-goog-api-key") or request.query.get("key"):
            return key
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def parse(self, request: HttpRequest) -> ParsedCall | CountCall | HttpAnswer:
        _, path = _split(request)
        method = _method(path)
        if request.method == "HEAD":
            return HttpAnswer(status=200, body=b"")
        if request.method == "GET" and method is None and (path in ("", "models") or _MODEL.fullmatch(path)):
            return HttpAnswer(status=200, body=self._listing(path))
        if request.method != "POST" or method not in (*_CALLS, _COUNT):
            way_out = f"send POST .../v1beta/models/<name>: with {', '.join(_CALLS)} or {_COUNT}"
            known = method in (*_CALLS, _COUNT)
            raise DialectError(f"{request.method} {request.path}: {way_out}", http_status=405 if known else 404)
        if method == _COUNT:
            return CountCall(request=read_count(request.body, request.memory), answer=_count)
        model = _model(path)
        call = read_request(request.body, request.memory, model=model)
        is_sse = request.query.get("alt") == "sse"
        renderer = GeminiRenderer(model=model, shows_thoughts=call.shows_thoughts, is_sse=is_sse)
        return ParsedCall(
            request=call.request,
            stream=method == "streamGenerateContent",
            renderer=renderer,
            content_type="text/event-stream" if is_sse else "application/json",
        )

    def failure(self, error: OpenForgeError) -> HttpAnswer:
        field = error.field if isinstance(error, DialectError) else None
        full = error.context_full
        body = error_body(str(error), status=error.http_status, code=error.code, field=field, full=full)
        return HttpAnswer(status=error.http_status, body=orjson.dumps(body))

    def _listing(self, path: str) -> bytes:
        name = _model(path) if path.startswith("models/") else ""
        entry = {
            "name": f"models/{name or self.model_name}",
            "version": "1",
            "displayName": name or self.model_name,
            "supportedGenerationMethods": [*_CALLS, _COUNT],
        }
        return orjson.dumps(entry if name else {"models": [entry]})


def _count(tokens: int) -> HttpAnswer:
    return HttpAnswer(status=200, body=orjson.dumps({"totalTokens": tokens}))


def _split(request: HttpRequest) -> tuple[str, str]:
    """The version, and the path behind it."""
    found = _VERSIONED.fullmatch(request.path)
    return (found[1] or "", found[2].strip("/")) if found else ("", request.path.strip("/"))


def _method(path: str) -> str | None:
    found = _MODEL.fullmatch(path)
    return found[2] if found else None


def _model(path: str) -> str:
    found = _MODEL.fullmatch(path)
    return found[1] if found else ""
