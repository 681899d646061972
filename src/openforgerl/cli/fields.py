"""What the config tree knows of itself: the fields below a path, and what they take."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence

from pydantic import BaseModel


def members(kind: type) -> dict[str, object]:
    """Field names of a config class and their annotations; {} for a plain value."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind):
        return dict(typing.get_type_hints(kind))
    return {}


def below(root: type, path: Sequence[str]) -> type | None:
    """The class of the table at `path`; None where there is none."""
    kind: object = root
    for key in path:
        options = members(kind) if isinstance(kind, type) else {}
        if key not in options:
            return None
        kind = options[key]
    return kind if isinstance(kind, type) and members(kind) else None


def knows_none(root: type, path: Sequence[str]) -> bool:
    """Whether the field at `path` takes None while that is not its default."""
    table = below(root, path[:-1])
    if table is None or not issubclass(table, BaseModel) or path[-1] not in table.model_fields:
        return False
    field = table.model_fields[path[-1]]
    union = typing.get_origin(field.annotation) in (typing.Union, types.UnionType)
    return union and type(None) in typing.get_args(field.annotation) and field.default is not None


def places(root: type, key: str, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every table of the tree that has a field of that name."""
    found = []
    for name, kind in members(root).items():
        if name == key:
            found.append(path)
        if isinstance(kind, type):
            found += places(kind, key, (*path, name))
    return found
