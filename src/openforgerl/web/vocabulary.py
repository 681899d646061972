"""What each token looks like on its own: text, a control token, bytes that are no whole character, or a bare id."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from openforgerl.errors import ConfigError
from openforgerl.tokens.codec import Codec

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"


class TokenKind(StrEnum):
    TEXT = "text"
    SPECIAL = "special"
    BYTES = "bytes"
    """A part of a character; its bytes are written as \\xNN."""
    ID = "id"
    """Nobody knows its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A codec that the recorded ids can be read with, or None; `note` says which, or why not."""

    codec: Codec | None
    note: str


def find_codec(folders: Iterable[Path], recorded: Collection[str]) -> Found:
    """The first folder whose tokenizer is one of those that the calls were recorded with."""
    tried: list[str] = []
    for folder in folders:
        try:
            codec = Codec.load(folder)
        except ConfigError as error:
            tried.append(str(error))
            continue
        if codec.tokenizer_hash in recorded or not recorded:
            return Found(codec=codec, note=f"Token texts from {folder / 'tokenizer.json'}.")
        tried.append(f"{folder / 'tokenizer.json'} is not the tokenizer that these calls were recorded with")
    reason = tried[0] if tried else "the run names no model folder, and has no checkpoint"
    return Found(codec=None, note=f"Tokens are shown as ids, for no tokenizer could be read: {reason}.")


def token_text(codec: Codec | None, token_id: int) -> tuple[str, TokenKind]:
    """The text that this id adds, apart from its neighbours."""
    raw = codec.token_text(token_id) if codec else ""
    if codec is None or not raw:
        return str(token_id), TokenKind.ID
    if codec.specials.get(raw) == token_id:
        return raw, TokenKind.SPECIAL
    text = codec.decode([token_id])
    data = _bytes_of(raw) if _REPLACEMENT in text else None
    if data is not None:
        return _hex_text(data)
    if raw.startswith(_WORD_START) and not text.startswith(" "):
        text = f" {text}"
    return (text, TokenKind.TEXT) if text else (raw, TokenKind.TEXT)


def _hex_text(data: bytes) -> tuple[str, TokenKind]:
    try:
        return data.decode(), TokenKind.TEXT
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace"), TokenKind.BYTES


def _bytes_of(raw: str) -> bytes | None:
    """Of a byte-level token, or of a fallback token <0xNN>; None for any other."""
    fallback = _BYTE_TOKEN.fullmatch(raw)
    if fallback:
        return bytes.fromhex(fallback[1])
    codes = [_BYTE_OF.get(char) for char in raw]
    return None if None in codes else bytes(code for code in codes if code is not None)


def _byte_alphabet() -> dict[str, int]:
    """Byte-level tokenizers write printable Latin-1 bytes as themselves, the others as the code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [code for code in range(0x100) if code not in set(printable)]
    return {chr(code): code for code in printable} | {chr(0x100 + at): code for at, code in enumerate(others)}


_BYTE_OF = _byte_alphabet()
