"""Keys: made here, compared here, kept as hashes only."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAccess:
    """What a harness is given. The key is shown once."""

    session_id: str
    key: str


def new_key() -> str:
    """43 characters that are safe in a URL and a header, 256 bits."""
    return "sk-" + secrets.token_urlsafe(32)


def key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def opens(key: str, expected: bytes) -> bool:
    """Takes the same time whatever the key."""
    return hmac.compare_digest(key_hash(key), expected)


def new_tool_call_id() -> str:
    """Letters and digits only: some harnesses rewrite every other character."""
    return "call" + "".join(secrets.choice(_LETTERS) for _ in range(20))
