"""Atomic writes: a file is written beside its place and moved there, so it is there whole or not at all. And
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
    """A file to write to, which is at ``folder``/``name`` after the block, in the place of one that was there.

    If the block raises, or the process dies in it, nothing there has changed. OSError: the disk does not take it.

    Args:
        name: or what gives it at the end, of a file whose name follows from its content.
        mode: who may read it, before the umask: 0o600 for a secret, which at no time anybody else can read.
        sync: the file's bytes are on the disk before it gets its name, so that a power cut leaves no empty file there.
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
    """sha256 (hex) of a file, of which a few MiB are in memory at once. OSError: it cannot be read."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ):
            hasher.update(block)
    return hasher.hexdigest()
