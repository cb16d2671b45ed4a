"""Memory for a section's vectors that the processes of an island share: an anonymous file that each of them maps.

Pages cost memory when they are first touched, and count for the processes that touch them; the rank that keeps a
section touches them in every step, the others hardly ever.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from ...ipc.arena import PAGE, SharedFile


class Room(SharedFile):
    """Processes that take the same vectors in the same order share them."""

    def __init__(self, size: int, file: int | None = None) -> None:
        super().__init__(size, file)
        self._at = 0

    def zeros(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The next vector [count]: zeros, or what another process has written into it."""
        if not count:
            return torch.empty(0, dtype=dtype)
        made = torch.frombuffer(self._map, dtype=dtype, count=count, offset=self._at)
        self._at += -(-made.nbytes // PAGE) * PAGE
        return made

    def let_go(self) -> None:
        """Do without the pages until they are touched again; nothing is lost, for the file keeps them."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def room_for(count: int, vectors: int) -> Room:
    """A room for so many vectors of ``count`` elements of at most 4 bytes, and a few numbers."""
    return Room(vectors * (-(-4 * count // PAGE) + 1) * PAGE + PAGE)
