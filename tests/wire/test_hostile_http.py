"""Requests that are no good HTTP: a 4xx, no second request smuggled in, no secret in a log, nobody else disturbed."""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
from pathlib import Path

import aiohttp
import pytest

from openforgerl.engines.scripted import ScriptedAnswer
from openforgerl.errors import ConfigError
from openforgerl.proxy.access import SessionAccess
from openforgerl.proxy.config import ProxyConfig
from openforgerl.proxy.gateway import Gateway
from openforgerl.proxy.server import serve
from proxy_world import ADMIN, Gate, World, in_turn, odd, odd_ids, proxy
from raw_http import BODY, answer, chunked, exchange, head, read_answer, statuses
from self_signed import certificate

LENGTH = f"Content-Length: {len(BODY)}"
SECOND = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def bad_framing(access: SessionAccess) -> dict[str, bytes]:
    """Each could be read as one request by one program and as two by another."""
    te = "Transfer-Encoding: chunked"
    return {
        "two lengths": head(access, LENGTH, "Content-Length: 5") + BODY,
        "two equal lengths": head(access, LENGTH, LENGTH) + BODY,
        "a list of lengths": head(access, f"Content-Length: {len(BODY)}, {len(BODY)}") + BODY,
        "a length and chunks": head(access, LENGTH, te) + chunked(BODY),
        "chunks and a length": head(access, te, LENGTH) + chunked(BODY),
        "two codings": head(access, te, "Transfer-Encoding: identity") + chunked(BODY),
        "an unknown coding": head(access, "Transfer-Encoding: xchunked") + chunked(BODY),
        "a signed length": head(access, f"Content-Length: +{len(BODY)}") + BODY,
        "a negative length": head(access, "Content-Length: -1") + BODY,
        "a length in hex": head(access, "Content-Length: 0x10") + BODY,
        "a length without end": head(access, f"Content-Length: {'9' * 40}") + BODY,
        "a space before the colon": head(access, f"Content-Length : {len(BODY)}") + BODY,
        "a folded header": head(access, "Transfer-Encoding:", " chunked") + chunked(BODY),
        "a chunk size that is none": head(access, te) + chunked(BODY, "zz"),
        "a negative chunk size": head(access, te) + chunked(BODY, "-5"),
        "a chunk size beyond 64 bits": head(access, te) + chunked(BODY, "f" * 18),
        "a chunk that is longer than it says": head(access, te) + chunked(BODY, "1"),
        "a NUL in a header": head(access, "X-Nul: a\0b", LENGTH) + BODY,
        "a NUL in the path": head(access, LENGTH, path="/v1/chat\0/completions") + BODY,
        "a bare line feed": head(access, LENGTH).replace(b"\r\n", b"\n") + BODY,
        "no host": head(access, LENGTH).replace(b"Host: proxy\r\n", b"") + BODY,
        "another protocol": head(access, LENGTH, version="HTTP/9.9") + BODY,
        "a word as protocol": head(access, LENGTH, version="GOPHER") + BODY,
        "a long path": head(access, LENGTH, path="/" + "a" * 9000) + BODY,
        "a long header": head(access, "X-Long: " + "a" * 9000, LENGTH) + BODY,
        "many headers": head(access, *(f"X-{number}: a" for number in range(300)), LENGTH) + BODY,
    }


NAMES = tuple(bad_framing(SessionAccess(session_id="s1", key="k")))


@pytest.mark.parametrize("name", NAMES)
async def test_a_request_with_doubtful_framing_is_refused_and_nothing_behind_it_is_read(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with proxy(tmp_path, in_turn(odd("fine"))) as world:
        access = await world.open()
        said = await exchange(world, bad_framing(access)[name] + SECOND)
        assert statuses(said) == [400]
        assert b'"status":"ok"' not in said
        assert world.gateway.status(access.session_id).counters.get("calls") is None
        assert access.key not in caplog.text
        assert "Traceback" not in caplog.text
        async with world.post(access, {"messages": [{"role": "user", "content": "hi"}]}) as response:
            assert response.status == 200


async def test_two_whole_requests_on_one_connection_are_answered_in_order(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("one"), odd("two"))) as world:
        access = await world.open()
        call = head(access, LENGTH) + BODY
        said = await exchange(world, call + call + SECOND.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert said.count(b"HTTP/1.1 200 OK") == 3
        assert said.index(b"one") < said.index(b"two") < said.index(b'{"status":"ok"}')


@pytest.mark.parametrize("key", [b"\xff\xfe", b"sk-\xed\xa0\x80", b"\xc3"])
async def test_a_key_of_any_bytes_is_a_wrong_key(tmp_path: Path, key: bytes) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        call = head(access, "Content-Length: 0").replace(access.key.encode(), key)
        assert (await answer(world, call))[0] == 401
        metrics = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + b"\r\n\r\n"
        assert (await answer(world, metrics))[0] == 403


@pytest.mark.parametrize("name", ["%ff%fe", "%00", "%ed%a0%80", "..%2f..", "a" * 200, "%f0%9f%98%80"])
async def test_a_session_of_any_name_is_unknown(tmp_path: Path, name: str) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        sent = head(access, "Content-Length: 0").replace(b"/s/s1/", f"/s/{name}/".encode())
        assert (await answer(world, sent))[0] == 401
        show = f"GET /sessions/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n\r\n".encode()
        assert (await answer(world, show))[0] == 404


async def test_a_key_in_the_url_is_in_no_log_even_where_the_request_is_broken_or_the_proxy_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def failing(request: object) -> str:
        raise ZeroDivisionError("unforeseen")

    async with proxy(tmp_path, failing) as world:
        access = await world.open()
        url = f"/s/{access.session_id}/v1beta/models/m:generateContent?key={access.key}"
        body = b'{"contents":[{"parts":[{"text":"hello"}]}]}'
        for version, status in (("HTTP/1.1", 503), ("HTTP/9.9", 400)):
            lines = f"POST {url} {version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            assert (await answer(world, lines.encode() + body))[0] == status
        assert "ZeroDivisionError" in caplog.text, "the failure itself is logged"
        assert "BadStatusLine" in caplog.text
        assert access.key not in caplog.text


async def test_a_head_that_does_not_come_and_an_idle_connection_are_closed(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("fine")), idle_timeout_s=0.2) as world:
        access = await world.open()
        assert await exchange(world) == b""
        assert await exchange(world, head(access, LENGTH)[:-9]) == b""
        assert statuses(await exchange(world, head(access, LENGTH) + BODY)) == [200], "then it is idle, and closed"


async def test_a_call_that_takes_longer_than_an_idle_connection_lives_is_answered(tmp_path: Path) -> None:
    gate = Gate()
    async with proxy(
        tmp_path, in_turn(ScriptedAnswer(ids=odd_ids("late"), gates={0: gate})), idle_timeout_s=0.05
    ) as world:
        access = await world.open()
        asked = asyncio.create_task(exchange(world, head(access, LENGTH) + BODY))
        await gate.stood_before()
        await asyncio.sleep(0.2)
        gate.set()
        assert b"late" in await asked


async def test_a_body_that_unpacks_beyond_the_cap_is_a_413(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), max_body_bytes=1 << 20) as world:
        access = await world.open()
        packed = gzip.compress(b" " * (8 << 20))
        assert len(packed) < 1 << 20
        sent = head(access, "Content-Encoding: gzip", f"Content-Length: {len(packed)}") + packed
        assert (await answer(world, sent))[0] == 413


async def test_bodies_of_one_session_share_one_cap_while_they_are_read(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("fine")), max_body_bytes=100_000) as world:
        one, two = await world.open(), await world.open()
        big = head(one, "Content-Length: 90000")
        reader, writer = await asyncio.open_connection(*world.server.address)
        writer.write(big + b" " * 80_000)
        live = world.gateway.authorize(one.session_id, one.key)
        async with asyncio.timeout(10):
            while live.reading.count < 80_000:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        status, refusal = await answer(world, big + b" " * 50_000)
        assert (status, b"too_many_bytes" in refusal) == (429, True)
        assert (await answer(world, head(two, LENGTH) + BODY))[0] == 200
        writer.write(b" " * (10_000 - len(BODY)) + BODY)
        assert (await read_answer(reader))[0] == 200
        writer.close()
        assert live.reading.count == 0


async def test_a_client_that_takes_no_refusal_is_dropped(tmp_path: Path) -> None:
    """Answers that nobody reads fill every buffer; then the connection goes."""
    async with proxy(tmp_path, in_turn("x"), write_timeout_s=0.3) as world:
        reader, writer = await asyncio.open_connection(*world.server.address, limit=1024)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        request = f"GET /s/nobody/v1/{'long' * 1900} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(_send_without_end(writer, request), 60)
        writer.close()
        async with world.http.get(f"{world.server.url}/healthz") as response:
            assert response.status == 200


async def _send_without_end(writer: asyncio.StreamWriter, request: bytes) -> None:
    while True:
        writer.write(request)
        await writer.drain()


def config_error(**fields: object) -> str:
    with pytest.raises(ValueError, match="Value error") as caught:
        ProxyConfig(**fields)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "proxy.example"])
def test_another_address_than_loopback_wants_tls_or_a_plain_word(host: str) -> None:
    assert "is reached from other machines" in config_error(host=host)
    assert ProxyConfig(host=host, insecure_bind=True).host == host
    assert ProxyConfig(host=host, tls_cert=Path("c"), tls_key=Path("k")).host == host


def test_loopback_wants_neither_and_a_certificate_goes_with_its_key() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert ProxyConfig(host=host).tls_cert is None
    assert "go together" in config_error(tls_cert="c")
    assert "go together" in config_error(tls_key="k")


async def test_a_certificate_makes_it_https_only(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with proxy(tmp_path, in_turn(odd("sealed")), tls_cert=cert, tls_key=key) as world:
        access = await world.open()
        assert world.server.url.startswith("https://127.0.0.1:")
        url = f"{world.server.url}/s/{access.session_id}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {access.key}"}
        trusting = ssl.create_default_context(cafile=str(cert))
        async with world.http.post(url, data=BODY, headers=headers, ssl=trusting) as response:
            assert "sealed" in await response.text()
        with pytest.raises(aiohttp.ClientError):
            await world.http.post(url.replace("https", "http"), data=BODY, headers=headers)
        async with world.http.post(
            f"{world.server.url}/sessions", json={}, headers={"Authorization": f"Bearer {ADMIN}"}, ssl=trusting
        ) as response:
            assert (await response.json())["base_urls"]["anthropic"].startswith("https://")


async def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with proxy(tmp_path, in_turn("x")) as world:
        for wrong in ({"tls_cert": tmp_path / "none", "tls_key": key}, {"tls_cert": cert, "tls_key": cert}):
            with pytest.raises(ConfigError, match=r"^\[proxy\] tls_cert, tls_key = .*name a PEM certificate chain"):
                await serve(_like(world, **wrong), admin_token=ADMIN).__aenter__()


def _like(world: World, **config: Path) -> Gateway:
    return Gateway(
        engine=world.engine,
        store=world.store,
        template=world.gateway.template,
        config=ProxyConfig(**config),  # type: ignore[arg-type]
    )
