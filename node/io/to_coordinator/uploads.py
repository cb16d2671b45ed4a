"""Sends files of checkpoints to the coordinator: one at a time; only the newest version of each file waits.

Otherwise files would pile up on a link that is slower than checkpoints are made, each a copy of the stage in shared
memory. A file that is being sent is never dropped for a newer one: on a slow link none would ever arrive.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ....proto.errors import FarflungError
from ...ipc.arena import Arena
from .artifacts import Artifacts

log = logging.getLogger("farflung.io")


@dataclass(frozen=True)
class Upload:
    """A file in the send arena."""

    step: int
    file: str
    start: int
    length: int
    files: int
    meta: str
    view: int


class UploadQueue:
    """The files that wait, oldest first. Pure."""

    def __init__(self) -> None:
        self._waiting: list[Upload] = []

    def put(self, upload: Upload) -> list[Upload]:
        """Add a file to the queue; returns the files that need not be sent any more."""
        old = [one for one in self._waiting if one.file == upload.file]
        self._waiting = [one for one in self._waiting if one.file != upload.file]
        self._waiting.append(upload)
        return old

    def next(self) -> Upload | None:
        """The file to send now."""
        return self._waiting.pop(0) if self._waiting else None


class Uploader:
    """Sends files from the send arena."""

    def __init__(
        self,
        artifacts: Artifacts,
        arena: Arena,
        *,
        urgent: Callable[[], bool],
        freed: Callable[[int], None],
        warn: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``urgent()``: whether a message waits that is more urgent than a checkpoint. ``freed(start)`` is called when
        the file that begins at ``start`` in the arena is not needed any more."""
        self._artifacts, self._arena = artifacts, arena
        self._urgent, self._freed, self._warn, self._spawn = urgent, freed, warn, spawn
        self._queue, self._sending = UploadQueue(), False

    def put(self, upload: Upload) -> None:
        """Send a file, when it is its turn."""
        for old in self._queue.put(upload):
            log.info("%s of step %d is not sent any more: step %d is there", old.file, old.step, upload.step)
            self._freed(old.start)
        if not self._sending:
            self._sending = True
            self._spawn(self._send_all())

    async def _send_all(self) -> None:
        """Send one file after the other: several at once would only slow the rounds."""
        try:
            while (one := self._queue.next()) is not None:
                payload = self._arena.view(one.start, one.length)
                try:
                    await self._artifacts.store(
                        one.step, one.file, payload, one.files, one.meta, yield_to=self._urgent, view=one.view
                    )
                except FarflungError as error:
                    self._warn(str(error))
                finally:
                    self._freed(one.start)
        finally:
            self._sending = False


def upload_of(step: int, file: str, start: int, length: int, files: int, meta: str) -> Upload:
    """The upload that a STORE message of the trainer describes."""
    return Upload(step, file, start, length, files, meta, int(json.loads(meta).get("view", 0)))
