"""The folder of a node: its keys, fetched data, and what it keeps beside checkpoints. Checked before the node joins.

Containers run as users that no list knows, with no HOME or with HOME=/; then a person has to name a folder.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...proto.errors import FarflungError

_HINT = "name a folder that this user may write: --cache DIR, or set HOME"


def own_folder(cache: Path | None = None) -> Path:
    """``cache``, or farflung's folder below the user's own. FarflungError: this user has none."""
    if cache is not None:
        return cache
    try:
        return Path.home() / ".cache" / "farflung"
    except RuntimeError:  # no HOME, and the user is in no list
        message = f"there is no folder for this node: HOME is not set, and user {os.getuid()} has none"
        raise FarflungError(message, _HINT) from None


def writable(folder: Path) -> Path:
    """Creates the folder and checks that it can be written. Raises FarflungError before a ticket is used up for
    nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".tried-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        why = error.strerror or error
        raise FarflungError(f"this node cannot keep its key and data in {folder}: {why}", _HINT) from error
    return folder
