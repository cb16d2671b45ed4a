"""Samples that do not fit into memory: one unnamed file of equal slots, which is gone with the process."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import OrderedDict


class DiskStore:
    """Bytes by sample id, all of one length; the ones that lie here longest make room.

    max_bytes: of the file. folder: where it is, the system's folder for temporary files by default. ``problem`` says
    why the disk took no more, in a sentence; then what is here stays, and nothing is added.
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
        """Keep a sample's bytes, if there is room for any."""
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
        """A sample's bytes, which are not here any more after that; None if they are not here."""
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
