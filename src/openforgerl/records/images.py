"""Images of a prompt, and what the first bytes of an image say of it: read without decoding a pixel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImage:
    """An image where it stands in a prompt: ids [at, at + count) are its placeholders."""

    sha256: str
    """Of the exact bytes, in hex."""
    grid: tuple[int, int, int]
    """Patches in time, height and width, as the model's processor cuts them."""
    at: int
    count: int

    def __post_init__(self) -> None:
        if self.at < 0 or self.count < 1 or min(self.grid) < 1:
            raise ValueError(f"image {self.sha256[:12]}: {self.count} ids at {self.at} for a grid of {self.grid}")


def content_keys(ids: Sequence[int], images: Sequence[PromptImage]) -> list[int]:
    """`ids` with the placeholders of images replaced by negative numbers that the images' bytes give.

    Equal keys are equal ids and equal images. Each number has 31 bits; a placeholder of its own stands for each.
    """
    keys = list(ids)
    for image in images:
        if image.at < len(keys):
            keys[image.at : image.at + image.count] = [*_keys(image)][: len(keys) - image.at]
    return keys


def _keys(image: PromptImage) -> Iterator[int]:
    wide = hashlib.shake_128(f"{image.sha256} {image.grid}".encode()).digest(4 * image.count)
    for place in range(image.count):
        yield -1 - (int.from_bytes(wide[4 * place : 4 * place + 4], "little") >> 1)


class ImageHeader(NamedTuple):
    media_type: str
    width: int
    height: int


def read_header(data: bytes) -> ImageHeader:
    """Raises ValueError where the bytes are no PNG, JPEG, WebP or GIF, or end before their size."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return _header("image/png", _number(data, 16, 4, "big"), _number(data, 20, 4, "big"))
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return _header("image/gif", _number(data, 6, 2, "little"), _number(data, 8, 2, "little"))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _header("image/webp", *_webp_size(data))
    if data.startswith(b"\xff\xd8\xff"):
        return _header("image/jpeg", *_jpeg_size(data))
    raise ValueError("the bytes are no PNG, JPEG, WebP or GIF")


def _header(media_type: str, width: int, height: int) -> ImageHeader:
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width} x {height} pixels")
    return ImageHeader(media_type, width, height)


def _number(data: bytes, at: int, size: int, order: str) -> int:
    if len(data) < at + size:
        raise ValueError("the image ends before its size")
    return int.from_bytes(data[at : at + size], "big" if order == "big" else "little")


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return _number(data, 24, 3, "little") + 1, _number(data, 27, 3, "little") + 1
        case b"VP8L":
            bits = _number(data, 21, 4, "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            return _number(data, 26, 2, "little") & 0x3FFF, _number(data, 28, 2, "little") & 0x3FFF
    raise ValueError("a WebP image begins with VP8, VP8L or VP8X")


_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a frame's header, whatever its coding."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a length."""


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while at < len(data):
        if data[at] != 0xFF:
            raise ValueError("a JPEG image whose segments do not follow each other")
        marker = _number(data, at + 1, 1, "big")
        if marker in _FRAMES:
            return _number(data, at + 7, 2, "big"), _number(data, at + 5, 2, "big")
        if marker == 0xFF:
            at += 1
        else:
            at += 2 if marker in _BARE else 2 + max(2, _number(data, at + 2, 2, "big"))
    raise ValueError("the image ends before its size")
