"""The HTTP shell of the gateway: a session's calls in their dialects, and the control API."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from aiohttp import web
from aiohttp.typedefs import Handler

from openforgerl.dialects.base import CountCall, Dialect, HttpAnswer, HttpRequest, ParsedCall
from openforgerl.dialects.chat import ChatDialect
from openforgerl.dialects.gemini import GeminiDialect
from openforgerl.dialects.messages import MessagesDialect
from openforgerl.dialects.responses import ResponsesDialect
from openforgerl.errors import AccessError, ConfigError, DialectError, OpenForgeError
from openforgerl.proxy.bodies import read_body
from openforgerl.proxy.control import Control, unknown_route
from openforgerl.proxy.feed import Feed
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.http_log import http_log
from openforgerl.proxy.listening import listen, tls_context
from openforgerl.proxy.session import LiveSession

_log = logging.getLogger(__name__)
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_SHUTDOWN_S = 2.0
_BACKLOG = 4096
"""Connections that wait to be taken: a thousand sessions may start at once."""
_LARGE_BODY_BYTES = 1 << 18
_DIRECT_BYTES = 1 << 14
"""What an empty connection takes at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyServer:
    """A server that listens."""

    address: tuple[str, int]
    secure: bool = False

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http{'s' if self.secure else ''}://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def serve(
    gateway: Gateway, *, admin_token: str, dialects: Sequence[Dialect] | None = None
) -> AsyncIterator[ProxyServer]:
    """Listens while entered. Raises ConfigError where the address is taken or the token is empty.

    The first dialect that claims a request answers it; the last one answers what none claims.
    """
    if not admin_token:
        raise ConfigError("the admin token is empty: set one, it opens the control API")
    model_name = gateway.config.model_name
    tls = tls_context(gateway.config)
    spoken = dialects or (
        MessagesDialect(model_name=model_name),
        ResponsesDialect(model_name=model_name),
        GeminiDialect(model_name=model_name),
        ChatDialect(model_name=model_name),
    )
    control = Control(gateway, admin_token)
    config = gateway.config
    app = web.Application()
    calls = web.route("*", "/s/{session}{path:(?:/.*)?}", SessionRoute(gateway, spoken).answer)
    routes = (*control.routes(), calls, web.route("*", "/{path:.*}", unknown_route))
    for route in routes:
        handler = bounded(route.handler, config.write_timeout_s)
        app.add_routes([web.RouteDef(route.method, route.path, handler, route.kwargs)])
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=http_log(),
        shutdown_timeout=_SHUTDOWN_S,
        keepalive_timeout=config.idle_timeout_s,
    )
    listener = listen(config.host, config.port)
    async with gateway.running():
        try:
            await runner.setup()
            await web.SockSite(runner, listener, ssl_context=tls, backlog=_BACKLOG).start()
            host, port = listener.getsockname()[:2]
            server = ProxyServer(address=(host, port), secure=tls is not None)
            control.url = server.url
            yield server
        finally:
            await asyncio.shield(_stop(gateway, runner, listener))


async def _stop(gateway: Gateway, runner: web.AppRunner, listener: socket.socket) -> None:
    await gateway.give_up()
    await runner.cleanup()
    listener.close()


def bounded(handler: Handler, write_timeout_s: float) -> Handler:
    """Every answer is written here, and one that its client does not take in time is dropped with its connection.

    No middleware: aiohttp keeps the handlers of those for ever.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await handler(request)
        if not response.prepared:
            try:
                async with asyncio.timeout(write_timeout_s):
                    await response.prepare(request)
                    await response.write_eof()
            except (ConnectionError, TimeoutError):
                _drop(request)
        return response

    return answer


class SessionRoute:
    """/s/<session id>/...: one request, in the dialect that claims it. Identity is the path and the key only."""

    def __init__(self, gateway: Gateway, dialects: Sequence[Dialect]) -> None:
        self._gateway = gateway
        self._dialects = dialects

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = HttpRequest(
            method=request.method,
            path=request.match_info["path"],
            query=dict(request.query),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=b"",
        )
        dialect = next((each for each in self._dialects if each.claims(asked)), None)
        if dialect is None:
            unknown = DialectError(
                f"{asked.path} is no path of a dialect spoken here", http_status=404, code="unknown_path"
            )
            return _plain(self._dialects[-1].failure(unknown))
        try:
            return await self._answer(request, asked, dialect)
        except OpenForgeError as error:
            return _plain(dialect.failure(error))
        except Exception:  # the boundary: a client gets its dialect's error and no traceback
            _log.exception("a request of session %s failed", request.match_info["session"])
            return _plain(dialect.failure(OpenForgeError("the proxy failed")))

    async def _answer(self, request: web.Request, asked: HttpRequest, dialect: Dialect) -> web.StreamResponse:
        live = self._gateway.authorize(request.match_info["session"], dialect.key(asked))
        try:
            parsed = await _parse(dialect, await self._with_body(request, asked, live))
        except (DialectError, AccessError):
            live.count("requests_refused")
            raise
        self._gateway.keep_body(live)
        if isinstance(parsed, HttpAnswer):
            return _plain(parsed)
        if isinstance(parsed, CountCall):
            return _plain(parsed.answer(await live.count_ids(parsed.request)))
        with _left(self._gateway.answer(live, dialect.name, parsed.request, asked.headers)) as feed:
            if parsed.stream:
                return await self._stream(request, parsed, feed)
            return await self._whole(request, parsed, feed)

    async def _with_body(self, request: web.Request, asked: HttpRequest, live: LiveSession) -> HttpRequest:
        config = self._gateway.config
        body = await read_body(
            request, most_bytes=config.max_body_bytes, within_s=config.body_timeout_s, reading=live.reading
        )
        return replace(asked, body=body, memory=live.bodies)

    async def _stream(self, request: web.Request, parsed: ParsedCall, feed: Feed) -> web.StreamResponse:
        error = await feed.answering(self._gateway.config.headers_after_s)
        if error is not None:
            raise error
        response = web.StreamResponse(headers={"Content-Type": parsed.content_type, **_STREAM_HEADERS})
        try:
            await response.prepare(request)
            async for batch in feed.batches(idle_s=self._gateway.config.keep_alive_s):
                if batch is None:
                    await self._write(request, response, parsed.renderer.idle())
                    continue
                data = b"".join([parsed.renderer.chunk(event) for event in batch.events])
                await self._write(request, response, data)
                feed.wrote(batch)
            await response.write_eof()
        except (ConnectionError, TimeoutError):
            _drop(request)
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        transport = request.transport
        if transport is not None and len(data) < _DIRECT_BYTES and not transport.get_write_buffer_size():
            await response.write(data)  # the client keeps up, so this does not wait
            return
        async with asyncio.timeout(self._gateway.config.write_timeout_s):
            await response.write(data)

    async def _whole(self, request: web.Request, parsed: ParsedCall, feed: Feed) -> web.StreamResponse:
        async for batch in feed.batches():
            for event in batch.events if batch else ():
                parsed.renderer.chunk(event)
        if batch is None:
            raise OpenForgeError("the call ended without a terminal event")
        if batch.error is not None:
            raise batch.error
        response = _plain(HttpAnswer(status=200, body=parsed.renderer.whole()))
        try:
            feed.uncertain = True
            async with asyncio.timeout(self._gateway.config.write_timeout_s):
                await response.prepare(request)
                await response.write_eof()
            feed.wrote(batch)
        except (ConnectionError, TimeoutError):
            _drop(request)
        return response


async def _parse(dialect: Dialect, asked: HttpRequest) -> ParsedCall | CountCall | HttpAnswer:
    """What is large and new is read in a thread: it must not hold up the other sessions."""
    large, memory = len(asked.body) >= _LARGE_BODY_BYTES, asked.memory
    if large and (memory is None or memory.fresh(asked.body) >= _LARGE_BODY_BYTES):
        return await asyncio.to_thread(dialect.parse, asked)
    return dialect.parse(asked)


@contextmanager
def _left(feed: Feed) -> Iterator[Feed]:
    try:
        yield feed
    finally:
        feed.leave()


def _drop(request: web.Request) -> None:
    """A client that takes nothing has gone, whatever TCP says."""
    if request.transport is not None:
        request.transport.abort()


def _plain(answer: HttpAnswer) -> web.Response:
    headers = {"Content-Type": answer.content_type, **answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
