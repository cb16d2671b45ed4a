"""Atomic writes (a file is written beside its place and renamed, so that it is there whole or not at all) and file
digests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_READ = 4 << 20


@contextlib.contextmanager
def whole_file(
    folder: Path, name: str | Callable[[], str], *, mode: int = 0o666, sync: bool = False
) -> Iterator[BinaryIO]:
    """A file to write to, which is at ``folder``/``name`` after the block and replaces an earlier one.

    If the block raises, or the process dies in it, an earlier file stays unchanged. OSError: it cannot be written.

    Args:
        name: the name, or a function that returns it at the end, if the name depends on the content.
        mode: permissions before the umask; with 0o600 no other user can read a secret at any time.
        sync: flush the bytes to the disk before the rename, so that a power cut leaves no empty file.
    """
    beside = folder / f".{secrets.token_hex(8)}.unfinished"
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        beside.replace(folder / (name if isinstance(name, str) else name()))
    finally:
        beside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes, *, mode: int = 0o666, sync: bool = False) -> None:
    """Put ``content`` at ``path``, as `whole_file` does."""
    with whole_file(path.parent, path.name, mode=mode, sync=sync) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file, read in blocks of a few MiB. OSError: it cannot be read."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ):
            hasher.update(block)
    return hasher.hexdigest()
