"""Signatures of ours: they name the call whose reasoning they stand for, so that it can be dropped and found again.

Base64, because clients of some formats decode them as bytes.
"""

from __future__ import annotations

import base64
import binascii

_OURS = b"openforgerl:"


def signature_of(call_id: str) -> str:
    return base64.b64encode(_OURS + call_id.encode()).decode()


def signed_call(signature: str) -> str:
    """The id of the call that a signature names; "" where it is not one of ours."""
    try:
        raw = base64.b64decode(signature, validate=True)
        return raw.removeprefix(_OURS).decode() if raw.startswith(_OURS) else ""
    except (binascii.Error, ValueError):
        return ""
