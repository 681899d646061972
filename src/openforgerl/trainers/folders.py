"""Folders that appear whole or not at all: written beside their place, synced, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITING = ".writing-"
_OLD = ".old-"


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A temporary sibling to write into; on success it becomes `folder`, replacing what stood there.

    A crash leaves at most hidden siblings, which `sweep` removes.
    """
    writing, old = folder.with_name(_WRITING + folder.name), folder.with_name(_OLD + folder.name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    try:
        yield writing
    except BaseException:
        shutil.rmtree(writing, ignore_errors=True)
        raise
    for path in sorted(writing.rglob("*")):
        _sync(path)
    _sync(writing)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    writing.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def sweep(parent: Path) -> int:
    """Removes what crashes left in `parent`, and brings back a folder whose replacement never came; their number."""
    found = 0
    for path in sorted(parent.glob(f"{_OLD}*")):
        folder = path.with_name(path.name.removeprefix(_OLD))
        if folder.exists():
            shutil.rmtree(path)
        else:
            path.rename(folder)
        found += 1
    for path in sorted(parent.glob(f"{_WRITING}*")):
        shutil.rmtree(path)
        found += 1
    return found


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
