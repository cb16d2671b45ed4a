"""An anonymous file through which one process of an island hands bytes to another: one writes, then the other reads."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...ipc.arena import PAGE, SharedFile
from ...rounds.protocol.payloads import Payload
from ...wire.api import Blob

KEPT = 64 << 20
"""Touched pages that a cleared box keeps: fresh ones are several times slower than the copies made in them."""


class Box(SharedFile):
    """One end of it. ``file``: the descriptor of the other process's end."""

    def __init__(self, size: int, file: int | None = None) -> None:
        super().__init__(size, file)
        self._all = memoryview(self._map)
        self._at = 0

    def clear(self) -> None:
        """All has been read: begin anew."""
        end, keep = -(-self._at // PAGE) * PAGE, min(KEPT, self.size)
        self._at = 0
        if end > keep and hasattr(mmap, "MADV_REMOVE"):
            self._map.madvise(mmap.MADV_REMOVE, keep, end - keep)

    def place(self, blobs: Iterable[Blob], count: int = 0) -> memoryview:
        """As `Wire.place`."""
        start = self._at
        for blob in blobs:
            for piece in blob:
                self._write(piece)
        return self._all[start : self._at]

    def put(self, payload: Payload) -> list[int]:
        """Write a payload. Returns where, for ``get``."""
        start = self._at
        for piece in (payload,) if isinstance(payload, memoryview | bytes) else payload:
            self._write(piece)
        return [start, self._at - start]

    def where(self, payload: Payload) -> list[int]:
        """Where ``place`` put it."""
        if not isinstance(payload, memoryview) or not payload.nbytes:
            return [0, 0]
        offset = np.frombuffer(payload, np.uint8).ctypes.data - np.frombuffer(self._all, np.uint8).ctypes.data
        return [offset, payload.nbytes]

    def get(self, where: Iterable[int]) -> memoryview:
        """The bytes that the other process wrote there, valid until it clears its box."""
        start, length = where
        return self._all[start : start + length]

    def _write(self, piece: bytes | bytearray | memoryview) -> None:
        view = memoryview(piece)
        if view.nbytes:
            self._all[self._at : self._at + view.nbytes] = view.cast("B")
            self._at += view.nbytes


class Boxes(NamedTuple):
    """The two boxes between the first process and another rank."""

    sent: Box
    """Written by the rank."""
    told: Box
    """Written by the first process."""
