"""What an image's header says, and its bytes in the store: once, exact, with the call that shows it."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from openforgerl.dialects.content import Content
from openforgerl.errors import DialectError, StoreError
from openforgerl.records import PromptImage, RecordedCall, Session, content_keys, read_header
from openforgerl.store.schema import MIGRATIONS, SCHEMA_VERSION, migrate, read_version
from openforgerl.store.sqlite import Store
from pictures import picture
from recorded_calls import recorded

TWO = {hashlib.sha256(data).hexdigest(): data for data in (picture(seed=1), picture(seed=2))}


def shown(names: Sequence[str]) -> tuple[PromptImage, ...]:
    return tuple(
        PromptImage(sha256=name, grid=(1, 4, 4), at=1 + 5 * place, count=4) for place, name in enumerate(names)
    )


def showing(index: int, names: Sequence[str]) -> RecordedCall:
    ids = (1, *(9 for _ in names for _ in range(5)))
    return recorded(index, ids, images=shown(names), processor_hash="p")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_the_header_says_type_and_size(kind: str) -> None:
    for width, height in ((1, 1), (40, 24), (300, 7)):
        assert read_header(picture(width, height, kind=kind)) == (f"image/{kind.lower()}", width, height)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_a_header_that_is_cut_is_an_error_of_the_image(kind: str) -> None:
    whole = picture(40, 24, kind=kind)
    wanted = read_header(whole)
    for length in range(64):
        try:
            assert read_header(whole[:length]) == wanted
        except ValueError:
            continue


def test_other_bytes_than_the_media_type_says_are_refused() -> None:
    data = base64.b64encode(picture(kind="JPEG")).decode()
    with pytest.raises(DialectError, match="says image/png, the bytes are image/jpeg"):
        Content({}).add_image(data, "image/png", "x")
    with pytest.raises(DialectError, match="no PNG"):
        Content({}).add_image(base64.b64encode(b"<svg/>").decode(), "image/png", "x")


def test_a_few_bytes_that_claim_a_huge_picture_are_refused_unseen() -> None:
    small = bytearray(picture())
    small[16:24] = (100_000).to_bytes(4, "big") * 2
    with pytest.raises(DialectError, match="100000 x 100000 pixels") as caught:
        Content({}).add_image(base64.b64encode(small).decode(), "image/png", "x")
    assert (caught.value.code, caught.value.http_status) == ("image_too_large", 400)


def test_keys_differ_where_pictures_differ_and_nowhere_else() -> None:
    first, second = TWO
    ids = [1, 9, 9, 9, 9, 5, 9, 9, 9, 9, 6]
    keys = [content_keys(ids, shown(names)) for names in ([first, second], [second, first], [first, first])]
    assert keys[0] != keys[1]
    assert keys[0][:6] == keys[2][:6]
    assert keys[0][6:10] != keys[2][6:10]
    assert [key for key in keys[0] if key >= 0] == [1, 5, 6]
    assert min(keys[0]) >= -(2**31)


async def test_a_picture_of_many_calls_is_stored_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    await store.open_session(Session(session_id="s1"))
    first, second = TWO
    calls = [showing(0, [first]), showing(1, [first, second]), showing(2, [second, first, second])]
    for call in calls:
        await store.commit(call, TWO)
    assert store.calls("s1") == tuple(calls)
    assert [store.image(name) for name in TWO] == list(TWO.values())
    await store.aclose()
    with closing(sqlite3.connect(tmp_path / "calls.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM images").fetchone() == (2,)
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute("DELETE FROM images")


async def test_a_call_without_the_bytes_of_its_picture_is_not_recorded(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    await store.open_session(Session(session_id="s1"))
    first, second = TWO
    for images in ({}, {first: TWO[second]}):
        with pytest.raises(StoreError, match=f"image {first[:12]} are missing or others"):
            await store.commit(showing(0, [first]), images)
    assert store.calls("s1") == ()
    with pytest.raises(StoreError, match="missing or changed"):
        store.image(first)
    await store.commit(showing(0, [first]), TWO)
    await store.commit(showing(1, [first]))
    await store.aclose()


async def test_a_store_from_before_pictures_opens_and_takes_them(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "calls.sqlite", isolation_level=None)) as connection:
        migrate(connection, "here", MIGRATIONS[:1])
        assert read_version(connection) == 1 < SCHEMA_VERSION
    store = Store.open(tmp_path)
    await store.open_session(Session(session_id="s1"))
    await store.commit(recorded(0, (1,)))
    await store.commit(showing(1, list(TWO)), TWO)
    assert [call.images for call in store.calls("s1")] == [(), shown(list(TWO))]
    await store.aclose()
