"""The config as it was used, written so that reading it gives the same config."""

from __future__ import annotations

import json
from collections.abc import Mapping

from openforgerl.cli.config import Config
from openforgerl.cli.fields import knows_none


def to_toml(config: Config) -> str:
    """Every field; a None that is the default is left out, as TOML has none."""
    lines: list[str] = []
    _table(config.model_dump(mode="json"), (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(table: Mapping[str, object], path: tuple[str, ...], lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (values or not table):
        lines += ["", f"[{'.'.join(_key(part) for part in path)}]"]
    for key, value in values.items():
        if value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
        elif knows_none(Config, (*path, key)):
            lines.append(f'{_key(key)} = "none"')
    for key, value in table.items():
        if isinstance(value, Mapping):
            _table(value, (*path, key), lines)


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("-", "").replace("_", "").isalnum() else _text(key)


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value)


def _text(text: str) -> str:
    """A JSON string is a TOML string, but for the one control character that JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
