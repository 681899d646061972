"""Text to ids and back, over the `tokenizers` library only.

Text is always plain: what looks like a control token is encoded as the characters that it is. Only a template puts
control tokens into a prompt, by `encode_marked`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers

from openforgerl.errors import ConfigError

_LONG_TEXT = 1 << 8
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """The tokenizer of one model folder."""

    tokenizer: Tokenizer
    tokenizer_hash: str
    stop_ids: tuple[int, ...]
    """Every id that ends a turn, the model's own first."""
    specials: dict[str, int]
    """Control tokens: text -> id."""
    special_ids: frozenset[int]
    special_pattern: re.Pattern[str]
    """Matches the text of any control token, the longest first."""
    bos_id: int | None
    longest_token: int | None
    """Most bytes of a text that one id stands for; None where the tokenizer does not say."""
    whole_texts: dict[int, str] | None
    """Of ids that stand for whole characters wherever they stand, as they are met; None where that is not known."""

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """Read a model folder. Raises ConfigError, which names the file."""
        data = _read(folder / "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ConfigError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        # One text at a time is encoded: a pool of threads would only hand it on. Read by the library, once.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        added = tokenizer.get_added_tokens_decoder()
        specials = {token.content: number for number, token in added.items() if token.special}
        settings = read_settings(folder / "tokenizer_config.json")
        return cls(
            tokenizer=tokenizer,
            tokenizer_hash=hashlib.sha256(data).hexdigest()[:32],
            stop_ids=_stop_ids(folder, tokenizer, settings),
            specials=specials,
            special_ids=frozenset(specials.values()),
            special_pattern=_pattern(specials),
            bos_id=_token_id(tokenizer, settings.get("bos_token")),
            longest_token=_longest_token(tokenizer),
            whole_texts={} if isinstance(tokenizer.decoder, decoders.ByteLevel) else None,
        )

    def with_stop_id(self, stop_id: int) -> Codec:
        """The same codec, with one more id that ends a turn."""
        return self if stop_id in self.stop_ids else replace(self, stop_ids=(*self.stop_ids, stop_id))

    def token_text(self, token_id: int | None) -> str:
        """A token's own text; "" for None."""
        return "" if token_id is None else self.tokenizer.id_to_token(token_id) or ""

    def encode(self, text: str) -> tuple[int, ...]:
        """Plain text: control-token text in it stays plain, nothing is added; half a surrogate pair becomes U+FFFD."""
        if not text:
            return ()
        # A JavaScript harness that cuts a string cuts between UTF-16 units.
        clean = text if text.isascii() else _SURROGATE.sub("\ufffd", text)
        if len(clean) < _LONG_TEXT:
            return tuple(self.tokenizer.encode(clean, add_special_tokens=False).ids)
        # The same ids; but this call leaves other threads running, and is faster, of large texts ten times.
        return tuple(self.tokenizer.encode_batch_fast([clean], add_special_tokens=False)[0].ids)

    def fewest_ids(self, text: str) -> int:
        """A lower bound of the ids of a text, without encoding it; white space around it does not count."""
        if self.longest_token is None:
            return 0
        inner = text.strip()
        # Composing characters (NFC) makes a text at most 3 times shorter, and leaves ASCII as it is.
        size = len(inner) if inner.isascii() else len(inner.encode(errors="surrogatepass")) // 3
        return size // self.longest_token

    def decode(self, ids: Sequence[int]) -> str:
        """Control tokens are shown; bytes that are no UTF-8 become U+FFFD."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False) if ids else ""


def _longest_token(tokenizer: Tokenizer) -> int | None:
    """Known of byte-level tokenizers that change no text but by composing characters: a vocabulary of bytes."""
    added = tokenizer.get_added_tokens_decoder().values()
    plain = isinstance(tokenizer.decoder, decoders.ByteLevel) and not any(each.lstrip or each.rstrip for each in added)
    if not plain or not isinstance(tokenizer.normalizer, normalizers.NFC | None):
        return None
    texts = [token.content.encode() for token in added]
    return max(map(len, (*tokenizer.get_vocab(with_added_tokens=False), *texts)), default=1)


def _pattern(specials: Iterable[str]) -> re.Pattern[str]:
    texts = sorted((text for text in specials if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; a model folder in the Hugging Face layout is needed") from error


def read_settings(path: Path) -> dict[str, object]:
    """An optional JSON file of the folder; {} where it is missing."""
    if not path.exists():
        return {}
    try:
        settings = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return settings


def _token_id(tokenizer: Tokenizer, token: object) -> int | None:
    """A token as tokenizer_config.json names it: its text, or an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(text) if isinstance(text, str) else None


def _stop_ids(folder: Path, tokenizer: Tokenizer, settings: dict[str, object]) -> tuple[int, ...]:
    found: list[object] = [_token_id(tokenizer, settings.get("eos_token"))]
    for name in ("generation_config.json", "config.json"):
        value = read_settings(folder / name).get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    ids = dict.fromkeys(value for value in found if isinstance(value, int))
    if not ids:
        raise ConfigError(
            f"{folder / 'generation_config.json'} names no eos_token_id and {folder / 'tokenizer_config.json'} no "
            "eos_token; add one, or no answer ever ends"
        )
    return tuple(ids)
