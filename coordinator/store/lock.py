"""At most one coordinator for a state folder: a lock that the kernel releases when the process ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from ...proto.errors import FarflungError
from .private import private_folder

FILE = "coordinator.lock"
_TRIES, _PAUSE_S = 5, 0.05  # `farflung status` holds it for a moment


class StateLock:
    """Held from ``__init__`` to ``release``. FarflungError when another process holds it."""

    def __init__(self, state: Path) -> None:
        private_folder(state)
        self._file = (state / FILE).open("a+")
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(_PAUSE_S)
        else:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            who = f" (process {holder})" if holder else ""
            hint = f"look at it: farflung status {state}; or give another --state"
            raise FarflungError(f"a coordinator already runs on {state}{who}", hint)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Release the lock."""
        self._file.truncate(0)
        self._file.close()


def is_locked(state: Path) -> bool:
    """Whether a coordinator holds the folder now."""
    try:
        with (state / FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True
