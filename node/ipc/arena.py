"""Shared memory between the trainer and its I/O process: one sparse arena in each direction.

An arena is an anonymous file (memfd) that both processes map. It has no name, so no file remains, however a process
ends. It is as large as the machine's memory but costs only the pages that were touched; blocks are taken from the
lowest free address, so that touched pages are used again (the first touch of a page is slow).
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
import os
import struct
import tempfile
import time
import weakref

PAGE = 4096
MOST_KEPT = 512 << 20
"""An arena keeps at most its first so many bytes (and at most 1/16 of its size) as touched but free memory."""

_ACTION = struct.Struct("<d248p")
_COUNT = struct.Struct("<I")
_MARK = struct.Struct("<Q")
_WORKED_AT = 2 * _ACTION.size
_ARRIVED_AT = _WORKED_AT + _MARK.size


def make_file(size: int) -> int:
    """An anonymous, sparse file of `size` bytes; the descriptor belongs to the caller."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("farflung", os.MFD_CLOEXEC)
    else:  # macOS: a file without a name
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class SharedFile:
    """An anonymous file that two or more processes map. ``file``: the descriptor of another process's, of the same size
    in bytes, which belongs to this object from now on; None: a new one."""

    def __init__(self, size: int, file: int | None = None) -> None:
        self.size = size
        self.file = make_file(size) if file is None else file
        weakref.finalize(self, os.close, self.file)
        self._map = mmap.mmap(self.file, size)


def keep_freed_memory() -> None:
    """Makes glibc keep large blocks: fresh pages are several times slower than the copies made in them."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for option, value in ((-3, 1 << 30), (-1, (2 << 30) - 1), (-2, 64 << 20)):  # MMAP_, TRIM_THRESHOLD, TOP_PAD
            mallopt(option, value)


def release_freed_memory() -> None:
    """Gives the free pages that glibc keeps back to the kernel: call it before large allocations that stay."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class Arena:
    """A mapped arena. One side, the owner, calls `take` and `give_back`; the other only looks with `view`."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)  # unmapped when the last view of it is gone
        self._all = memoryview(self._map)
        self.size = size
        self._keep = min(MOST_KEPT, size // 16 // PAGE * PAGE)
        self.in_use = 0
        self._taken: dict[int, int] = {}
        self._free: list[tuple[int, int]] = [(0, size)]  # (start, length), sorted, never adjacent
        self._touched = 0  # pages above this address were never used

    def view(self, start: int, length: int) -> memoryview:
        """The bytes of a block."""
        return self._all[start : start + length]

    def take(self, length: int) -> int | None:
        """The address of a new block for `length` bytes; None when no gap is large enough."""
        need = max(PAGE, -(-length // PAGE) * PAGE)
        for index, (start, gap) in enumerate(self._free):
            if gap >= need:
                if gap == need:
                    del self._free[index]
                else:
                    self._free[index] = (start + need, gap - need)
                self._taken[start] = need
                self.in_use += need
                self._touched = max(self._touched, start + need)
                return start
        return None

    def shorten(self, start: int, length: int) -> None:
        """Frees the bytes of a block after its first `length`."""
        need = max(PAGE, -(-length // PAGE) * PAGE)
        if need < self._taken[start]:
            self._taken[start + need] = self._taken[start] - need
            self._taken[start] = need
            self.give_back(start + need)

    def give_back(self, start: int) -> None:
        """Frees a block. KeyError if it is not taken."""
        length = self._taken.pop(start)
        self.in_use -= length
        index = bisect.bisect(self._free, (start, 0))
        if index < len(self._free) and self._free[index][0] == start + length:
            length += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == start:
            index -= 1
            start, before = self._free.pop(index)
            length += before
        self._free.insert(index, (start, length))
        self._trim(start, length)

    def _trim(self, start: int, length: int) -> None:
        """Gives the touched pages of a free gap back to the kernel, beyond the bytes that are kept, if no touched page
        lies above the gap."""
        keep = max(start, self._keep)
        if start + length < self._touched or self._touched <= keep or not hasattr(mmap, "MADV_REMOVE"):
            return
        self._map.madvise(mmap.MADV_REMOVE, keep, self._touched - keep)
        self._touched = keep


class LastAction:
    """What the trainer last did and when, in a shared page that the I/O process reads.

    In the same page the I/O process writes how many messages are arriving and how many bytes have arrived.
    """

    SIZE = PAGE

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def did(self, doing: str) -> None:
        """For the trainer: store ``doing`` (words) with the time. CLOCK_MONOTONIC is the same in both processes."""
        _ACTION.pack_into(self._view, 0, time.monotonic(), doing.encode()[:240])

    def read(self) -> tuple[float, str]:
        """(seconds since the last action, its words)."""
        when, doing = _ACTION.unpack_from(self._view, 0)
        return max(0.0, time.monotonic() - when), doing.decode("utf-8", "replace")

    def tell_arriving(self, count: int) -> None:
        """For the I/O process: ``count`` messages have arrived in part."""
        _COUNT.pack_into(self._view, _ACTION.size, count)

    @property
    def arriving(self) -> int:
        """Messages of which only a part has arrived."""
        return int(_COUNT.unpack_from(self._view, _ACTION.size)[0])

    def worked(self, count: int = 1) -> None:
        """For the trainer: ``count`` more pieces of work are done. Polling for messages does not count as work."""
        _MARK.pack_into(self._view, _WORKED_AT, self.work + count)

    @property
    def work(self) -> int:
        """Pieces of work that the trainer has done."""
        return int(_MARK.unpack_from(self._view, _WORKED_AT)[0])

    def tell_arrived(self, count: int) -> None:
        """For the I/O process: ``count`` bytes have arrived since its start."""
        _MARK.pack_into(self._view, _ARRIVED_AT, count)

    @property
    def arrived(self) -> int:
        """Bytes that have arrived, whole messages or not."""
        return int(_MARK.unpack_from(self._view, _ARRIVED_AT)[0])
