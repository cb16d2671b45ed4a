"""Training data that the nodes of a machine keep in a cache folder: data in use is kept, the rest may be removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

_JUST_MADE = 60.0  # seconds: a file used within them may be in use by a process that has not locked it yet


class Held:
    """A shared lock on a file or folder that this process uses, until `close` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self._handle: int | None = os.open(path, os.O_RDONLY)
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def make_room(cache: Path, wanted: int, limit: int, own: Collection[Path]) -> int:
    """Remove data that no process holds, least recently used first, until ``wanted`` bytes more fit in ``limit`` bytes.
    Returns the bytes of the limit that are left for the paths ``own``, which are neither counted nor removed."""
    found = [path for pattern in ("tokens-*", "pieces-*") for path in cache.glob(pattern) if path not in own]
    sizes = {path: _size(path) for path in found}
    there = sum(sizes.values())
    for path in sorted(found, key=_used):
        if there + wanted <= limit:
            break
        if _remove_unused(path):
            there -= sizes[path]
    return max(limit - there, 0)


def _remove_unused(path: Path) -> bool:
    """Remove a file or folder unless a process holds it. Returns whether it is gone."""
    if time.time() - _used(path) < _JUST_MADE:
        return False
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents; no error if another process removed it first."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    size = 0
    with contextlib.suppress(FileNotFoundError):  # another process removes it
        for file in path.iterdir() if path.is_dir() else (path,):
            size += file.stat().st_size
    return size


def _used(path: Path) -> float:
    """When it was last used. A folder's time is that of the last file added or removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
