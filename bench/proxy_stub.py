"""What the bench of the proxy calls upstream: an engine whose answers of 64 tokens differ a little, and the floor.

    python bench/proxy_stub.py engine --port P [--pace-ms 1]
    python bench/proxy_stub.py floor --port P --upstream URL [--db FILE]

The engine reads no JSON: it looks for the flag `stream` at the end of a body. It speaks Chat Completions, and vLLM's
/inference/v1/generate (ids in, ids and log-probs out). The floor is what any Python proxy pays: read the body, parse
it, forward it, send the answer back; with --db one record of 564 ids and 64 log-probs is durable before that ends.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import hashlib
import json
import logging
import queue
import sqlite3
import threading
from functools import cache
from itertools import cycle
from typing import Any

import orjson
import uvloop
from aiohttp import ClientSession, TCPConnector, web

WORDS = ["I", " will", " read", " the", " file", " and", " run", " tests"] * 8
IDS = [40, 686, 1349, 279, 1034, 323, 1598, 7032] * 8
LOGPROBS = [-(1 + place % 7) / 10 for place in range(64)]
DIGIT = 15
"""The id of "0" in Qwen3's vocabulary, those of the other digits follow."""
KINDS = 1000
END = 151645
"""<|im_end|> of Qwen3."""
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FLAG_WITHIN = 4096


def dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(data: bytes) -> bytes:
    body = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(body), body)


def chat_choice(**fields: object) -> dict[str, object]:
    return {"id": "chatcmpl-stub", "object": "chat.completion", "created": 1, "model": "toy",
            "choices": [{"index": 0, "finish_reason": None, **fields}]}  # fmt: skip


def words(kind: int) -> list[str]:
    """An agent does not say the same twice: three tokens are the digits of a number."""
    return [*f"{kind:03}", *WORDS[3:]]


def ids_choice(kind: int, start: int, stop: int, reason: str | None) -> dict[str, object]:
    digits = [DIGIT + int(digit) for digit in f"{kind:03}"]
    ids, logprobs = [*digits, *IDS[3:], END][start:stop], [*LOGPROBS, -0.1][start:stop]
    content = [{"token": f"token_id:{each}", "logprob": value} for each, value in zip(ids, logprobs, strict=True)]
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": reason}
    return {"request_id": "stub", "choices": [choice]}


def answers(kind: int) -> dict[tuple[bool, bool], list[bytes]]:
    """(of ids, streamed) -> what is written, piece by piece."""
    said = words(kind)
    text = {"role": "assistant", "content": "".join(said)}
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 64, "total_tokens": 65}}
    chat_whole = {**chat_choice(message=text, finish_reason="stop"), **usage}
    whole = [dumped(chat_whole), dumped(ids_choice(kind, 0, 65, "stop"))]
    chat = [dumped(chat_choice(delta={"content": word})) for word in said]
    chat.append(dumped(chat_choice(delta={}, finish_reason="stop")))
    ids = [dumped(ids_choice(kind, place, place + 1, None)) for place in range(63)]
    ids.append(dumped(ids_choice(kind, 63, 65, "stop")))
    end = event(b"[DONE]") + b"0\r\n\r\n"
    found = {(bool(of_ids), False): [PLAIN % len(body) + body] for of_ids, body in enumerate(whole)}
    return found | {(of, True): [STREAM, *map(event, each), end] for of, each in ((False, chat), (True, ids))}


class Engine(asyncio.Protocol):
    """One connection, one request at a time."""

    answers = cache(answers)
    pace_s = 0.0
    kinds = cycle(range(KINDS))

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer, self.alive = transport, bytearray(), True

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.buffer[:end]).lower()
        place = head.find(b"content-length:")
        length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(self.buffer) >= end + 4 + length:
            streamed = b'"stream":true' in self.buffer[-FLAG_WITHIN:]
            self.buffer.clear()
            of_ids = b"/inference/" in head.split(b"\r\n", 1)[0]
            self.say(Engine.answers(next(self.kinds))[of_ids, streamed], 0)

    def say(self, pieces: list[bytes], place: int) -> None:
        if self.alive and place < len(pieces):
            self.transport.write(pieces[place])
            if len(pieces) > 1:
                asyncio.get_running_loop().call_later(self.pace_s, self.say, pieces, place + 1)


class Writer:
    """One thread; what waits is one transaction."""

    def __init__(self, path: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: queue.SimpleQueue[tuple[tuple[object, ...], asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self.run, args=(path,), daemon=True).start()

    def put(self, row: tuple[object, ...]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self.loop.create_future()
        self.queue.put((row, done))
        return done

    def run(self, path: str) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE calls (id INTEGER PRIMARY KEY, key TEXT, hash BLOB, ids BLOB, logprobs BLOB)")
        while True:
            batch = [self.queue.get()]
            while not self.queue.empty():
                batch.append(self.queue.get())
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO calls (key, hash, ids, logprobs) VALUES (?, ?, ?, ?)", [row for row, _ in batch]
            )
            connection.execute("COMMIT")
            self.loop.call_soon_threadsafe(self.release, [done for _, done in batch])

    @staticmethod
    def release(waiting: list[asyncio.Future[None]]) -> None:
        for done in waiting:
            if not done.done():
                done.set_result(None)


class Floor:
    def __init__(self, upstream: str, http: ClientSession, writer: Writer | None) -> None:
        self.upstream, self.http, self.writer = upstream, http, writer

    async def record(self, request: web.Request, raw: bytes) -> None:
        if self.writer is not None:
            ids, logprobs = array.array("i", range(564)).tobytes(), array.array("f", LOGPROBS).tobytes()
            key = request.headers.get("authorization", "")
            await self.writer.put((key, hashlib.blake2b(raw, digest_size=16).digest(), ids, logprobs))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        streamed = orjson.loads(raw).get("stream")
        headers = {"content-type": "application/json"}
        async with self.http.post(self.upstream + "/v1/chat/completions", data=raw, headers=headers) as upstream:
            if not streamed:
                body = await upstream.read()
                await self.record(request, raw)
                return web.Response(body=body, content_type="application/json")
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            async for part in upstream.content.iter_any():
                if b"[DONE]" in part:
                    await self.record(request, raw)
                await response.write(part)
            await response.write_eof()
            return response


async def run_engine(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


async def run_floor(port: int, upstream: str, db: str | None) -> None:
    http = ClientSession(connector=TCPConnector(limit=0), auto_decompress=False)
    floor = Floor(upstream, http, Writer(db) if db else None)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/{path:.*}", floor.answer)
    app.router.add_get("/healthz", lambda request: _ok())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def _ok() -> web.Response:
    return web.Response(text="ok")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("engine", "floor"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pace-ms", type=float, default=1.0)
    parser.add_argument("--upstream", default="")
    parser.add_argument("--db")
    asked = parser.parse_args()
    logging.basicConfig()
    Engine.pace_s = asked.pace_ms / 1000
    uvloop.run(run_engine(asked.port) if asked.what == "engine" else run_floor(asked.port, asked.upstream, asked.db))


if __name__ == "__main__":
    main()
