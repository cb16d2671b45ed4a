"""Stores samples that do not fit into memory in one unnamed file of equal slots, which disappears with the process."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import OrderedDict


class DiskStore:
    """Bytes by sample id, all of one length; the oldest are dropped to make room.

    max_bytes: the file's largest size. folder: its folder, by default the system's for temporary files. ``problem``: a
    sentence on the disk's first error; after it stored samples stay, and no more are added.
    """

    def __init__(self, max_bytes: int, folder: str | None = None) -> None:
        self.max_bytes = max_bytes
        self.problem = ""
        self._file, name = tempfile.mkstemp(prefix="farflung-", dir=folder)
        os.unlink(name)
        weakref.finalize(self, os.close, self._file)
        self._size = 0
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, sample: int, data: bytes | memoryview) -> None:
        """Store a sample's bytes, unless the disk has failed or the file has no slots."""
        self.drop(sample)
        self._size = self._size or len(data)
        if self.problem or len(data) != self._size or self._size > self.max_bytes:
            return
        if self._free:
            slot = self._free.pop()
        elif (len(self._slots) + 1) * self._size <= self.max_bytes:
            slot = len(self._slots)
        else:
            _, slot = self._slots.popitem(last=False)
        try:
            written = os.pwrite(self._file, data, slot * self._size)
            if written != self._size:
                raise OSError(f"{written} of {self._size} bytes were written")
        except OSError as error:
            self.problem = f"the disk takes no more samples: {error}"
            self._free.append(slot)
            return
        self._slots[sample] = slot

    def take(self, sample: int) -> bytes | None:
        """Remove a sample and return its bytes; None if it is not stored."""
        slot = self._slots.pop(sample, None)
        if slot is None:
            return None
        self._free.append(slot)
        try:
            return os.pread(self._file, self._size, slot * self._size)
        except OSError as error:
            self.problem = f"the disk gives no samples back: {error}"
            return None

    def drop(self, sample: int) -> None:
        slot = self._slots.pop(sample, None)
        if slot is not None:
            self._free.append(slot)

    def clear(self) -> None:
        self._slots.clear()
        self._free = []
        self._size = 0
        os.ftruncate(self._file, 0)
