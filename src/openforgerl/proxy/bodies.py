"""A request's whole body, however many segments it comes in: with a cap and a deadline."""

from __future__ import annotations

import asyncio

from aiohttp import web

from openforgerl.errors import DialectError


async def read_body(request: web.Request, *, most_bytes: int, within_s: float) -> bytes:
    """Raises DialectError: 413 over the cap, 408 after the deadline, 400 where it is broken."""
    try:
        async with asyncio.timeout(within_s):
            return await _whole(request, most_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {within_s:g} s"
        raise DialectError(message, http_status=408, code="timeout") from None
    except (web.RequestPayloadError, web.HTTPBadRequest) as error:
        raise DialectError(f"the body cannot be read: {error}") from None


async def _whole(request: web.Request, most_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.content.iter_any():
        body += part
        if len(body) > most_bytes:
            message = f"the body is larger than {most_bytes} bytes"
            raise DialectError(message, http_status=413, code="request_too_large")
    return bytes(body)
