"""Memory for a section's vectors that the processes of an island share: an anonymous file that each of them maps.

Pages cost memory when they are first touched, and count for the processes that touch them. The rank that keeps a
section touches them in every step. What another process reads or writes there, for a checkpoint or a peer, it leaves
again piece by piece (`leave`), so that it never has more than one section's vectors.
"""

from __future__ import annotations

import mmap
import threading
import weakref

import torch
from torch import Tensor

from ...ipc.arena import PAGE, SharedFile

_LOCK = threading.Lock()
_rooms: tuple[weakref.ref[Room], ...] = ()
"""All rooms of this process: `leave` finds the room of a tensor by its address. Replaced, never changed."""


class Room(SharedFile):
    """Processes that take the same vectors in the same order share them."""

    def __init__(self, size: int, file: int | None = None) -> None:
        super().__init__(size, file)
        self._at = 0
        self._start = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        self.is_kept = False
        """Whether this process computes with the vectors in every step, so that its pages stay."""
        _remember(self)

    def zeros(self, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The next vector [count]: zeros, or what another process has written into it."""
        if not count:
            return torch.empty(0, dtype=dtype)
        made = torch.frombuffer(self._map, dtype=dtype, count=count, offset=self._at)
        self._at += -(-made.nbytes // PAGE) * PAGE
        return made

    def let_go(self, start: int = 0, stop: int | None = None) -> None:
        """Do without the pages of these bytes until they are touched again; nothing is lost, for the file keeps
        them."""
        first, end = start // PAGE * PAGE, self.size if stop is None else stop
        if end > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)

    def leave(self, values: Tensor) -> bool:
        """As the function `leave`, if the tensor lies here; returns whether it does."""
        start = values.data_ptr() - self._start
        if not 0 <= start < self.size:
            return False
        if not self.is_kept:
            self.let_go(start, min(start + values.nbytes, self.size))
        return True


def _remember(room: Room) -> None:
    global _rooms
    with _LOCK:
        _rooms = (*(one for one in _rooms if one() is not None), weakref.ref(room))


def leave(*tensors: Tensor) -> None:
    """Call it after reading or writing whole vectors or parameters (contiguous) outside of a step: the pages of those
    that lie in a room which another process keeps are not this process's any more. Nothing is lost."""
    rooms = [room for one in _rooms if (room := one()) is not None]
    for values in tensors if rooms else ():
        if values.device.type == "cpu" and values.numel():
            any(room.leave(values) for room in rooms)


def room_for(count: int, vectors: int) -> Room:
    """A room for so many vectors of ``count`` elements of at most 4 bytes, and a few numbers."""
    return Room(vectors * (-(-4 * count // PAGE) + 1) * PAGE + PAGE)


def away(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A vector [count] of zeros, of at most 4 bytes an element, in a room of its own, which no process keeps: call
    `leave` after each use."""
    room = Room(max(PAGE, 4 * count))
    made = room.zeros(count, dtype)
    weakref.finalize(made, room.let_go)  # keeps the room as long as the vector
    return made
