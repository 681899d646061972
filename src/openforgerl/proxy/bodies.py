"""A request's whole body, however many segments it comes in: with a cap, a deadline, and a share of its session's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from openforgerl.errors import AccessError, DialectError


@dataclass(slots=True)
class Reading:
    """Bytes of the bodies of one session that are being read: together no more than one body may have."""

    count: int = 0


async def read_body(request: web.Request, *, most_bytes: int, within_s: float, reading: Reading | None = None) -> bytes:
    """Raises DialectError: 413 over the cap, 408 after the deadline, 400 where it is broken; AccessError: 429."""
    body, reading = bytearray(), reading or Reading()
    try:
        async with asyncio.timeout(within_s):
            await _read_into(body, request, most_bytes, reading)
        return bytes(body)
    except TimeoutError:
        message = f"the body did not arrive within {within_s:g} s"
        raise DialectError(message, http_status=408, code="timeout") from None
    except (web.RequestPayloadError, web.HTTPBadRequest) as error:
        raise DialectError(f"the body cannot be read: {error}") from None
    finally:
        reading.count -= len(body)


async def _read_into(body: bytearray, request: web.Request, most_bytes: int, reading: Reading) -> None:
    async for part in request.content.iter_any():
        body += part
        reading.count += len(part)
        if len(body) > most_bytes:
            message = f"the body is larger than {most_bytes} bytes"
            raise DialectError(message, http_status=413, code="request_too_large")
        if reading.count > most_bytes:
            message = f"bodies of this session that are being read have more than {most_bytes} bytes; try again later"
            raise AccessError(message, http_status=429, code="too_many_bytes")
