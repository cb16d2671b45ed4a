"""Blocks of shared memory between the trainer and its I/O process: which are in use, and when they are free again.

A block that the trainer holds is free when the last view of its array is gone; a block that is being sent stays until
the I/O process has sent it.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

from ..ipc.arena import Arena, LastAction


class Blocks:
    """The blocks of both arenas: this process writes payloads to be sent into one, and reads received payloads from
    the other."""

    def __init__(self, sending: Arena, receiving: Arena) -> None:
        self.sending, self._receiving = sending, receiving
        page = sending.take(LastAction.SIZE)
        assert page == 0, "the arena is new"
        self.first_page = sending.view(0, LastAction.SIZE)
        """A page that both processes read; see `LastAction`."""
        self._first = _address(sending.view(0, 1))
        self.flying: dict[int, list[tuple[memoryview, int]]] = {}
        """By address: the payloads that the I/O process is still sending, each with its bytes that count as pending."""
        self._unused: deque[_Lent] = deque()
        """Blocks for sending that nobody holds any more."""
        self.done_with: deque[_Lent] = deque()
        """Blocks that have arrived and nobody holds any more."""
        self._lent: tuple[dict[int, _Lent], dict[int, _Lent]] = {}, {}
        """Blocks that somebody holds, of both arenas."""

    # ---- to be sent ------------------------------------------------------------------------

    def room(self, length: int) -> npt.NDArray[np.uint8] | None:
        """A block for sending; None: none is free."""
        while self._unused:
            self.sending.give_back(self._lent[0].pop(self._unused.popleft().start).start)
        start = self.sending.take(length)
        return None if start is None else self._lend(self.sending, start, length)

    def shorten(self, block: memoryview, length: int) -> None:
        """Free the bytes of a block after its first ``length``."""
        self.sending.shorten(self._start(block), length)

    def holds(self, piece: memoryview) -> bool:
        """Whether a piece lies in the send arena."""
        return self._start(piece) >= 0

    def fly(self, block: memoryview, counted: int) -> int:
        """Keep a block until the I/O process has sent it (``landed``). Returns its address. ``counted``: its bytes that
        count as pending."""
        start = self._start(block)
        self.flying.setdefault(start, []).append((block, counted))
        return start

    def landed(self, start: int) -> int:
        """The I/O process has sent the block at ``start``. Returns its bytes that counted as pending."""
        _, counted = self.flying[start].pop()
        if not self.flying[start]:
            del self.flying[start]
        return counted

    def _start(self, piece: memoryview) -> int:
        """The address of a piece in the send arena; negative: it lies elsewhere."""
        start = _address(piece) - self._first
        return start if start < self.sending.size else -1

    # ---- what has arrived --------------------------------------------------------------------

    def received(self, start: int, length: int) -> npt.NDArray[np.uint8]:
        """A payload that has arrived, as an array over its block."""
        return self._lend(self._receiving, start, length)

    def read_up(self) -> list[int]:
        """Starts of received blocks that no array uses any more; the I/O process may use them again."""
        return [self._lent[1].pop(self.done_with.popleft().start).start for _ in range(len(self.done_with))]

    def _lend(self, arena: Arena, start: int, length: int) -> npt.NDArray[np.uint8]:
        """The bytes of a block as an array. When the last view of the array is gone, the block is appended to a list of
        free ones. The callback does no more, because it may run at any moment, and it is C code (`deque.append`),
        because an exception that a signal handler raises in a callback's Python code is lost (a Ctrl-C)."""
        ours = arena is self.sending
        array = np.frombuffer(arena.view(start, length), np.uint8)
        lent = _Lent(array, (self._unused if ours else self.done_with).append)
        lent.start = start
        self._lent[0 if ours else 1][start] = lent
        return array


class _Lent(weakref.ref[npt.NDArray[np.uint8]]):
    """A weak reference to the array of a block; its callback marks the block as free."""

    __slots__ = ("start",)
    start: int


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
