"""Characters that a reader would not see, made visible: rollout text is hostile, and a page must not hide any of it."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_IGNORABLE = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164), (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Default ignorable code points that are no format characters; the viewer's script asks its browser for the same."""


def visible(text: str) -> str:
    """Control, format (bidi among them), ignorable and surrogate characters as ⟨U+202E⟩; a newline and a tab stay."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(f"⟨U+{ord(char):04X}⟩" if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    if char in "\n\t":
        return False
    code = ord(char)
    return unicodedata.category(char) in _HIDDEN or any(first <= code <= last for first, last in _IGNORABLE)
