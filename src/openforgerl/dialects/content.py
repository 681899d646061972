"""The content of one message: texts and images in their order, whatever format they came in.

Neighbouring texts are joined by a newline, as vLLM does for templates that take strings.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field

from openforgerl.errors import DialectError
from openforgerl.records import ImageRef, read_header

_MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_MOST_BYTES = 32 << 20
_MOST_PIXELS = 1 << 26
"""8192 x 8192: an image of a few bytes may claim pixels without end."""
_DATA_URL = re.compile(r"data:([^;,]*)(;[^,]*)?,", re.ASCII)


@dataclass(slots=True)
class Content:
    """Grows part by part. `bytes_of` collects the images of the whole request, by sha256."""

    bytes_of: dict[str, bytes]
    images: list[ImageRef] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)
    _length: int = 0
    _behind_text: bool = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def add_text(self, text: str) -> None:
        self._append("\n" + text if self._behind_text else text)
        self._behind_text = True

    def add_image_url(self, url: str, path: str) -> None:
        """A data URL. Raises DialectError, which names `path`, for any other."""
        found = _DATA_URL.match(url)
        if found is None or ";base64" not in (found[2] or ""):
            way_out = "send the image itself, as data:image/png;base64,..."
            raise DialectError(f"{path}: {url[:40]!r} is not fetched; {way_out}", field=path, code="image_url_refused")
        self.add_image(url[found.end() :], found[1], path)

    def add_image(self, data: str, media_type: str, path: str) -> None:
        """Base64 of the bytes. Raises DialectError, which names `path`."""
        if media_type not in _MEDIA_TYPES:
            raise DialectError(f"{path}: {media_type[:40]!r} is none of {', '.join(_MEDIA_TYPES)}", field=path)
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise DialectError(f"{path}: the image is not base64; encode its bytes anew", field=path) from None
        if not raw:
            raise DialectError(f"{path}: the image is empty; leave it out", field=path)
        _check(raw, media_type, path)
        digest = hashlib.sha256(raw).hexdigest()
        self.bytes_of[digest] = raw
        self.images.append(ImageRef(sha256=digest, media_type=media_type, at=self._length))
        self._behind_text = False

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)


def _check(raw: bytes, media_type: str, path: str) -> None:
    """By its header alone: nothing is decoded here. Raises DialectError."""
    try:
        header = read_header(raw)
    except ValueError as error:
        raise DialectError(f"{path}: {error}; send a whole image", field=path, code="invalid_image") from None
    if header.media_type != media_type:
        message = f"{path}: the media type says {media_type}, the bytes are {header.media_type}; say what they are"
        raise DialectError(message, field=path, code="invalid_image")
    size = f"{header.width} x {header.height} pixels in {len(raw)} bytes"
    if len(raw) > _MOST_BYTES or header.width * header.height > _MOST_PIXELS:
        message = f"{path}: {size} are more than {_MOST_PIXELS} pixels or {_MOST_BYTES} bytes; send a smaller image"
        raise DialectError(message, field=path, code="image_too_large")
