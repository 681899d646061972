"""Tool arguments for the wires that carry them as a JSON object, not as text."""

from __future__ import annotations

from openforgerl.dialects.jsontext import Json, read_json, write_json
from openforgerl.errors import DialectError


def object_text(arguments: str) -> str:
    """JSON text of an object, always: "" is {}; text that is no object becomes {"arguments": text}.

    An object keeps its text, unless it has escapes: half a surrogate pair among them stops a strict reader.
    """
    text = arguments.strip() or "{}"
    value = _read(text)
    if not isinstance(value, dict):
        return write_json({"arguments": arguments.encode(errors="replace").decode()})
    return write_json(value) if "\\u" in text else text


def _read(text: str) -> Json:
    """None where it is no JSON."""
    try:
        return read_json(text.encode())
    except (DialectError, RecursionError, UnicodeEncodeError):
        return None
