"""The control API: sessions, grades, weights, metrics. Behind the admin token, which no session key replaces."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from openforgerl.errors import AccessError, DialectError, OpenForgeError, StoreError
from openforgerl.proxy.access import key_hash, opens
from openforgerl.proxy.bodies import read_body
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.metrics import CONTENT_TYPE, prometheus_text
from openforgerl.records import INT64_MAX, EndedBy, Ending, Grade, Sampling, Session, check_id
from openforgerl.trajectories import rows

_log = logging.getLogger(__name__)
_MAX_BODY_BYTES = 1 << 20

Route = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def unknown_route(request: web.Request) -> web.StreamResponse:
    """The last route, for what no other takes: 404, or 405 with the methods that the path has; in JSON, as all else."""
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        match, methods = await resource.resolve(request)
        allowed |= methods if match is None else set()
    asked = f"{request.method} {request.path}"
    if not allowed:
        return _error(f"{asked}: there is no such path", "unknown_path", 404)
    names = ", ".join(sorted(allowed))
    answer = _error(f"{asked}: this path takes {names}", "wrong_method", 405)
    answer.headers["Allow"] = names
    return answer


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SamplingPins(_Body):
    """Session.sampling, from outside."""

    temperature: FiniteFloat | None = Field(default=None, ge=0)
    top_p: FiniteFloat | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=INT64_MAX)
    min_p: FiniteFloat | None = Field(default=None, ge=0, le=1)
    presence_penalty: FiniteFloat | None = None
    frequency_penalty: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=-INT64_MAX - 1, le=INT64_MAX)
    max_tokens: int | None = Field(default=None, ge=1, le=INT64_MAX)


class OpenSession(_Body):
    task_id: str = ""
    group_id: str = ""
    rollout_id: str = ""
    attempt: int = Field(default=0, ge=0, le=INT64_MAX)
    harness: str = ""
    sampling: SamplingPins = SamplingPins()
    labels: dict[str, str] = Field(default_factory=dict)
    strip_system_lines: tuple[str, ...] | None = None


class CloseSession(_Body):
    ended_by: EndedBy
    reason: str = ""


class GradeSession(_Body):
    """Exactly one of the three."""

    reward: FiniteFloat | None = None
    ungraded: str | None = None
    grader_error: str | None = None


class Weights(_Body):
    folder: Path
    policy_version: int = Field(ge=0, le=INT64_MAX)


B = TypeVar("B", bound=_Body)


class Control:
    """The routes; `url` is known once the server listens."""

    def __init__(self, gateway: Gateway, admin_token: str) -> None:
        self._gateway = gateway
        self._token_hash = key_hash(admin_token)
        self.url = ""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self._healthz),
            web.get("/metrics", self._guarded(self._metrics)),
            web.post("/sessions", self._guarded(self._open)),
            web.get("/sessions/{id}", self._guarded(self._show)),
            web.post("/sessions/{id}/close", self._guarded(self._close)),
            web.post("/sessions/{id}/grade", self._guarded(self._grade)),
            web.get("/sessions/{id}/calls", self._guarded(self._calls)),
            web.get("/sessions/{id}/rows", self._guarded(self._rows)),
            web.post("/weights", self._guarded(self._weights)),
        ]

    def _guarded(self, route: Route) -> Route:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                self._check_token(request)
                return await route(request)
            except OpenForgeError as error:
                return _error(str(error), error.code, error.http_status)
            except Exception:  # the boundary: a client gets JSON and no traceback
                _log.exception("%s %s failed", request.method, request.path)
                failed = OpenForgeError("the proxy failed; its log says how")
                return _error(str(failed), failed.code, failed.http_status)

        return guarded

    def _check_token(self, request: web.Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise AccessError("send the admin token as `Authorization: Bearer ...`", code="no_admin_token")
        if not opens(token.strip(), self._token_hash):
            raise AccessError("this is not the admin token", http_status=403, code="wrong_admin_token")

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return _json({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=prometheus_text(self._gateway).encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _open(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, OpenSession)
        session = _session(body)
        if self._exists(session.session_id):
            message = f"session {session.session_id} exists already: raise attempt for another try of this rollout"
            raise DialectError(message, http_status=409, code="session_exists")
        access = await self._gateway.open_session(session, strip_system_lines=body.strip_system_lines)
        base = f"{self.url}/s/{access.session_id}"
        urls = {"openai": f"{base}/v1", "anthropic": base, "gemini": base}
        return _json({"session_id": access.session_id, "key": access.key, "base_urls": urls}, status=201)

    async def _show(self, request: web.Request) -> web.StreamResponse:
        return _json(self._gateway.status(self._known(request)))

    async def _close(self, request: web.Request) -> web.StreamResponse:
        session_id, body = self._known(request), await self._read(request, CloseSession)
        try:
            ending = Ending(ended_by=body.ended_by, reason=body.reason)
        except ValueError as error:
            raise DialectError(f"reason: {error}") from None
        await self._gateway.close_session(session_id, ending)
        sealed = self._gateway.store.session(session_id).ending
        if sealed != ending:
            raise DialectError(f"session {session_id} is closed already, as {sealed}", http_status=409, code="closed")
        return _json(self._gateway.status(session_id))

    async def _grade(self, request: web.Request) -> web.StreamResponse:
        session_id, body = self._sealed(request), await self._read(request, GradeSession)
        await self._gateway.grade(session_id, _grade(body))
        return _json(self._gateway.status(session_id))

    async def _calls(self, request: web.Request) -> web.StreamResponse:
        session_id, store = self._known(request), self._gateway.store

        def read() -> web.Response:
            return _json({"calls": store.calls(session_id), "uncommitted": store.intents(session_id)})

        return await asyncio.to_thread(read)

    async def _rows(self, request: web.Request) -> web.StreamResponse:
        session_id, store = self._sealed(request), self._gateway.store
        return await asyncio.to_thread(lambda: _json({"rows": rows(store.calls(session_id))}))

    async def _weights(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, Weights)
        if not await asyncio.to_thread(body.folder.is_dir):
            message = f"folder: {body.folder} is no folder on this machine; save the model there with save_pretrained"
            raise DialectError(message, field="folder")
        await self._gateway.load_weights(body.folder, body.policy_version)
        return _json({"policy_version": self._gateway.engine.policy_version})

    async def _read(self, request: web.Request, model: type[B]) -> B:
        within_s = self._gateway.config.body_timeout_s
        return _parsed(await read_body(request, most_bytes=_MAX_BODY_BYTES, within_s=within_s), model)

    def _exists(self, session_id: str) -> bool:
        try:
            return bool(self._gateway.store.session(session_id))
        except StoreError:
            return False

    def _known(self, request: web.Request) -> str:
        session_id = request.match_info["id"]
        if not self._exists(session_id):
            raise DialectError(f"there is no session {session_id}", http_status=404, code="unknown_session")
        return session_id

    def _sealed(self, request: web.Request) -> str:
        session_id = self._known(request)
        if self._gateway.store.session(session_id).ending is None:
            message = f"session {session_id} is open; POST /sessions/{session_id}/close first"
            raise DialectError(message, http_status=409, code="open")
        return session_id


def _parsed(raw: bytes, model: type[B]) -> B:
    """Raises DialectError, one line that names the first wrong field."""
    try:
        return model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise DialectError(f"{field}: {first['msg']}", field=field) from None


def _session(body: OpenSession) -> Session:
    session_id = f"{body.rollout_id}-a{body.attempt}" if body.rollout_id else f"s-{secrets.token_hex(8)}"
    try:
        check_id("rollout_id", body.rollout_id or "none")
        return Session(
            session_id=session_id,
            task_id=body.task_id,
            group_id=body.group_id,
            rollout_id=body.rollout_id,
            attempt=body.attempt,
            harness=body.harness,
            sampling=Sampling(**body.sampling.model_dump()),
            labels=body.labels,
        )
    except ValueError as error:
        raise DialectError(str(error)) from None


def _grade(body: GradeSession) -> Grade:
    said = {name: value for name, value in body if value is not None}
    if len(said) != 1:
        raise DialectError("body: send exactly one of reward, ungraded, grader_error")
    try:
        if body.reward is not None:
            return Grade(kind="reward", reward=body.reward)
        if body.ungraded is not None:
            return Grade(kind="ungraded", reason=body.ungraded)
        return Grade(kind="grader_error", reason=body.grader_error or "")
    except ValueError as error:
        raise DialectError(f"body: {error}") from None


def _error(message: str, code: str, status: int) -> web.Response:
    return _json({"error": {"message": message, "code": code}}, status=status)


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
