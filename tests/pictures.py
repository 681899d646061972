"""Small pictures of random pixels, as bytes of each format that we read."""

from __future__ import annotations

import base64
import io
from random import Random

from PIL import Image


def picture(width: int = 40, height: int = 24, *, seed: int = 0, kind: str = "PNG") -> bytes:
    """Another seed gives another picture."""
    pixels = Random(seed).randbytes(3 * width * height)
    out = io.BytesIO()
    Image.frombytes("RGB", (width, height), pixels).save(out, kind)
    return out.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


PIXEL = picture(1, 1)
