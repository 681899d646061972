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

    A crash leaves at most hidden siblings; one between the two renames leaves the old content as `.old-<name>` only.
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


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
