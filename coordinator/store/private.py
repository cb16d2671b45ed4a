"""Folders that only their owner may read: a run's folder has keys, tokens, tickets' digests and perhaps private
data."""

from __future__ import annotations

import os
from pathlib import Path

from ...proto.errors import FarflungError

OWNER_ONLY = 0o700


def private_folder(path: Path) -> None:
    """Make the folder, or remove the permissions of group and others from an existing one. FarflungError: it belongs to
    another user."""
    path.mkdir(parents=True, exist_ok=True, mode=OWNER_ONLY)
    found = path.stat()
    if found.st_mode & 0o077 == 0:
        return
    try:
        path.chmod(OWNER_ONLY)
    except OSError as error:
        raise FarflungError(
            f"others can read the run's folder {path}, and it cannot be closed to them: {error.strerror}",
            f"it belongs to user {found.st_uid}, this is user {os.getuid()}: give another --state",
        ) from None
