"""One process writes a store: an advisory lock that the kernel drops with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from openforgerl.errors import StoreError


class FolderLock:
    """Held from creation until `close`. Raises StoreError where another process holds it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreError(
                f"store {folder} is open in another process (pid {holder}): end it, or open the store read-only"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        os.close(self._descriptor)
