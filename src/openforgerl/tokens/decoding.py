"""Ids to text one id at a time, and which text each id ends: the map between the truth and its view."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from openforgerl.tokens.codec import Codec

_UNKNOWN = "\ufffd"
_HELD_MOST = 8


class IncrementalDecoder:
    """Never gives half a character. The joined text is that of decoding all ids at once.

    A boundary is a number of ids n whose text is complete; `boundary_chars[k]` is the length of the text of the first
    `boundary_ids[k]` ids.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._context: list[int] = []
        self._held: list[int] = []
        self._count = 0
        self._length = 0
        self.boundary_ids: list[int] = [0]
        self.boundary_chars: list[int] = [0]

    def feed(self, token_id: int) -> str:
        """The text that this id completes; "" while a character is incomplete."""
        if not self._held and (known := self._whole(token_id)):
            self._count += 1
            self._context = [token_id]
            self._length += len(known)
            self.boundary_ids.append(self._count)
            self.boundary_chars.append(self._length)
            return known
        self._held.append(token_id)
        self._count += 1
        text = self._new_text()
        # An incomplete character decodes to U+FFFD at the end; more ids may complete it.
        if not text.endswith(_UNKNOWN):
            return self._release(text)
        return self._release_broken(text) if len(self._held) >= _HELD_MOST else ""

    def _whole(self, token_id: int) -> str:
        """The text of an id whose bytes are whole characters; "" for another, or where that is not known."""
        texts = self._codec.whole_texts
        if texts is None:
            return ""
        text = texts.get(token_id)
        if text is None:
            alone = self._codec.decode([token_id])
            text = texts[token_id] = "" if _UNKNOWN in alone else alone
        return text

    def flush(self) -> str:
        """What is held at the end, bytes that form no character as U+FFFD."""
        return self._release(self._new_text()) if self._held else ""

    def _new_text(self) -> str:
        before = self._codec.decode(self._context)
        return self._codec.decode(self._context + self._held)[len(before) :]

    def _release_broken(self, text: str) -> str:
        """A character has at most four bytes: of more held ids, the first ones are broken for good."""
        for count in range(len(self._held) - 1, 0, -1):
            whole, rest = self._held, self._held[count:]
            self._held = whole[:count]
            head = self._new_text()
            if head + self._codec.decode(rest) == text:
                return self._release(head, rest)
            self._held = whole
        return ""

    def _release(self, text: str, rest: list[int] | None = None) -> str:
        self._context, self._held = self._held, rest or []
        self._length += len(text)
        self.boundary_ids.append(self._count - len(self._held))
        self.boundary_chars.append(self._length)
        return text

    def ids_before(self, chars: int) -> tuple[int, int]:
        """The most ids whose text lies within the first `chars` characters, and the length of that text."""
        place = bisect_right(self.boundary_chars, chars) - 1
        return self.boundary_ids[place], self.boundary_chars[place]

    def ids_until(self, chars: int) -> tuple[int, int]:
        """The fewest ids whose text holds the first `chars` characters, and the length of that text."""
        place = bisect_left(self.boundary_chars, chars)
        # Ids without text of their own belong to what is before them.
        place = bisect_right(self.boundary_chars, self.boundary_chars[place]) - 1
        return self.boundary_ids[place], self.boundary_chars[place]


def decode_all(codec: Codec, ids: Iterable[int]) -> tuple[str, IncrementalDecoder]:
    """The text of ids, with its boundaries."""
    decoder = IncrementalDecoder(codec)
    text = "".join([decoder.feed(token_id) for token_id in ids])
    return text + decoder.flush(), decoder
