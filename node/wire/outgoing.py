"""Payloads that the trainer hands to the I/O process: where they lie until they are sent, and how many bytes wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from ...proto.data_pb2 import Header
from ...proto.errors import RunFailed
from ...proto.messages import bodies
from ...proto.messages.frame import HEAD_LIMIT
from ..ipc.pipe import INLINE_LIMIT
from ..peers.header_compression import MARK
from .api import Bytes
from .blocks import Blocks
from .payloads import joined, pieces_of

HEADER_LIMIT = HEAD_LIMIT // 2


def check_sendable(header: Header, priority: int) -> None:
    """ValueError for a header that is too long or has a reserved section name, or for an unknown priority."""
    if not 0 <= priority <= 2:
        raise ValueError(f"priority {priority} is not 0, 1 or 2")
    if header.ByteSize() > HEADER_LIMIT:
        raise ValueError(f"a header of {header.ByteSize()} bytes: long lists belong into the payload")
    bodies.check(header)
    body = bodies.sectioned(header)
    if body is not None and body.section.startswith(MARK):
        raise ValueError(f"a section's name must not begin with {MARK!r}")


class Outgoing:
    """Small payloads go through the pipe, larger ones lie in a block of shared memory until they are sent."""

    def __init__(self, blocks: Blocks, limit: int, wait: Callable[[], None], must_act: Callable[[], bool]) -> None:
        """``limit``: bytes that may wait for the network. ``wait``: waits up to a second for messages and handles them.
        ``must_act``: whether an event arrived that must end the wait for the network."""
        self.pending = 0
        """Bytes that wait for the network."""
        self._blocks, self._limit, self._wait, self._must_act = blocks, limit, wait, must_act

    def hand_over(self, pieces: list[memoryview], length: int) -> bytes | tuple[int, int]:
        """What the pipe carries for a payload of ``length`` bytes: the bytes, or (start, length) in the arena. Waits
        while ``limit`` bytes wait for the network."""
        while self.pending and self.pending + length > self._limit and not self._must_act():
            self._wait()
        if length <= INLINE_LIMIT:
            handed: bytes | tuple[int, int] = b"".join(pieces)
        else:
            handed = (self._blocks.fly(self._laid(pieces), length), length)
        self.pending += length
        return handed

    def lay(self, pieces: list[memoryview]) -> tuple[int, int]:
        """Put a payload into the arena; it does not count as pending. Returns (start, length)."""
        block = self._laid(pieces)
        return self._blocks.fly(block, 0), len(block)

    def freed(self, start: int, length: int) -> None:
        """The I/O process has sent the block at ``start``; negative: ``length`` bytes that went through the pipe."""
        self.pending -= self._blocks.landed(start) if start >= 0 else length

    def place(self, blobs: Iterable[Sequence[Bytes]], count: int) -> memoryview:
        """See `Wire.place`."""
        rest = iter(blobs)
        first = pieces_of(next(rest, ()))
        length = sum(map(len, first))
        room = self.room(max(1, count * (length + length // 16)))
        at = 0
        for pieces in chain((first,), map(pieces_of, rest)):
            if at + sum(map(len, pieces)) > len(room):  # copy each: its pieces may change with the next blob
                whole = [b"".join(each) for each in chain((pieces,), map(pieces_of, rest))]
                return self._block([room[:at].data, *pieces_of(whole)])
            for piece in pieces:
                room[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)
        self._blocks.shorten(room.data, at)
        return room[:at].data

    def room(self, length: int) -> npt.NDArray[np.uint8]:
        """A block of the arena; waits for acknowledgements when it is full. RunFailed if that cannot help."""
        while (found := self._blocks.room(length)) is None:
            if not self._blocks.flying:
                raise RunFailed(f"no room for a message of {length} bytes", "this machine has too little memory")
            self._wait()
        return found

    def _laid(self, pieces: list[memoryview]) -> memoryview:
        """The pieces in one block of the arena: without a copy if they lie in one already."""
        return pieces[0] if len(pieces) == 1 and self._blocks.holds(pieces[0]) else self._block(pieces)

    def _block(self, pieces: list[memoryview]) -> memoryview:
        """A copy of the pieces in a block of the arena."""
        return joined(pieces, self.room(sum(map(len, pieces)))).data
