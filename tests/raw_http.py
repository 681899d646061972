"""Requests byte by byte, as no well-behaved client sends them."""

from __future__ import annotations

import asyncio
import json

from openforgerl.proxy.access import SessionAccess
from proxy_world import World

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


def head(access: SessionAccess, *headers: str, path: str = "/v1/chat/completions", version: str = "HTTP/1.1") -> bytes:
    """Of a call, up to and with the empty line."""
    lines = [f"POST /s/{access.session_id}{path} {version}", "Host: proxy", f"Authorization: Bearer {access.key}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1")


def chunked(body: bytes, size: str | None = None) -> bytes:
    return f"{size or f'{len(body):x}'}\r\n".encode() + body + b"\r\n0\r\n\r\n"


async def exchange(world: World, *parts: bytes) -> bytes:
    """Everything that the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection(*world.server.address)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def answer(world: World, sent: bytes) -> tuple[int, bytes]:
    """Status and body of the first answer, whatever becomes of the connection."""
    reader, writer = await asyncio.open_connection(*world.server.address)
    try:
        writer.write(sent)
        async with asyncio.timeout(20):
            return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    said = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in said.lower().splitlines() if line.startswith(b"content-length:"))
    return statuses(said)[0], await reader.readexactly(int(length.partition(b":")[2]))


def statuses(said: bytes) -> list[int]:
    """Of the answers, in order."""
    marks = (b"HTTP/1.1 ", b"HTTP/1.0 ")
    return [int(line.split()[1]) for line in said.split(b"\r\n") if line.startswith(marks)]
