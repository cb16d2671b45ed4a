"""Which file of a checkpoint a node sends next: pure. One is on its way, and of each file only the newest waits.

A link slower than checkpoints are made would else pile them up, each a copy of the stage in shared memory. The one on
its way is never dropped for a newer one: on a slow link none would ever arrive.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Upload:
    """A file that lies in the arena for sending."""

    step: int
    file: str
    start: int
    length: int
    files: int
    meta: str
    view: int


class UploadQueue:
    """The files that wait, oldest first."""

    def __init__(self) -> None:
        self._waiting: list[Upload] = []

    def put(self, upload: Upload) -> list[Upload]:
        """Let it wait; returns those that need not be sent any more."""
        old = [one for one in self._waiting if one.file == upload.file]
        self._waiting = [one for one in self._waiting if one.file != upload.file]
        self._waiting.append(upload)
        return old

    def next(self) -> Upload | None:
        """The one to send now."""
        return self._waiting.pop(0) if self._waiting else None
