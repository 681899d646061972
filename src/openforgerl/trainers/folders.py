"""Folders that appear whole or not at all: written beside their place, synced, then renamed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITING = ".writing-"
_OLD = ".old-"
_VERSION = re.compile(rf"(?:{re.escape(_WRITING)}|{re.escape(_OLD)})?v[0-9]+")


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A temporary sibling to write into; on success it becomes `folder`, replacing what stood there.

    A crash leaves at most hidden siblings; one between the two renames leaves the old content as `.old-<name>` only.
    """
    writing, old = folder.with_name(_WRITING + folder.name), folder.with_name(_OLD + folder.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    try:
        yield writing
        for path in sorted(writing.rglob("*")):
            _sync(path)
        _sync(writing)
    except BaseException:
        shutil.rmtree(writing, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    writing.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_versions(parent: Path, keep: frozenset[int]) -> None:
    """Every folder v<number> but those to keep, and what a crash left beside one; whatever else is there stays."""
    kept = {f"v{version}" for version in keep}
    for entry in sorted(parent.iterdir()):
        ours = _VERSION.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
        if ours and entry.name not in kept:
            shutil.rmtree(entry)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
