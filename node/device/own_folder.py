"""The folder of a node: its keys, fetched data, and what it keeps beside checkpoints. Checked before the node joins.

Containers may run as a user that /etc/passwd does not have, without HOME or with HOME=/; then a person has to name a
folder.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...proto.errors import FarflungError

COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable by which torch's compiler is told where to keep what it has compiled."""
_WRITE = "name a folder that this user may write: "


def own_folder(cache: Path | None = None) -> Path:
    """``cache``, or ~/.cache/farflung. FarflungError: this user has no home folder."""
    if cache is not None:
        return cache
    try:
        return Path.home() / ".cache" / "farflung"
    except RuntimeError:  # no HOME, and the user is not in /etc/passwd
        message = f"there is no folder for this node: HOME is not set, and user {os.getuid()} has none"
        raise FarflungError(message, _WRITE + "--cache DIR, or set HOME") from None


def keep_compiled(cache: Path) -> None:
    """Let torch keep what it compiles (``train.compile``) in the node's own folder, so that a restart does not compile
    the same layers again; by itself it takes a folder of /tmp. A folder that the owner has named stays."""
    os.environ.setdefault(COMPILED, str(cache.resolve() / "compiled"))


def writable(folder: Path, what: str = "key and data", hint: str = "--cache DIR, or set HOME") -> Path:
    """Creates the folder, for ``what``, and checks that it can be written. FarflungError if not, before a use of the
    ticket is spent. ``hint``: how a person names another."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".tried-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        why = error.strerror or error
        raise FarflungError(f"this node cannot keep its {what} in {folder}: {why}", _WRITE + hint) from error
    return folder
