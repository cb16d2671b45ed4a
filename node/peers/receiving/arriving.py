"""A message that is arriving: its chunks come in any order, and its END frame has their number and the digest."""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from ....proto.data_pb2 import Header
from ....proto.messages.frame import Frame


class StreamRefused(Exception):
    """The stream must end; the text is sent to the other side."""


@dataclass(eq=False)
class Arriving:
    """A message that has not been delivered yet. Without a block or a body it is received and dropped.

    ``whole``: it is small and came in one frame; it may have to wait for the messages before it.
    """

    transfer: int
    priority: int
    header: Header
    total: int
    start: int | None = None
    view: memoryview | None = None
    body: bytes | None = None
    whole: bool = False
    received: int = 0
    chunks: int = 0
    apart: dict[int, int] = field(default_factory=dict)  # chunks after a gap: offset -> length
    gapless: int = 0  # bytes from the beginning that have arrived without a gap, and are in the digest
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)
    end: Frame | None = None

    @property
    def complete(self) -> bool:
        return self.whole or (self.end is not None and self.received == self.total)

    def add(self, frame: Frame) -> None:
        """Take in a chunk. StreamRefused if it does not fit the chunks that are here."""
        offset, length = frame.offset, len(frame.body)
        if frame.total != self.total or offset < self.gapless or offset in self.apart or not length:
            raise StreamRefused(f"chunk {frame.seq} at {offset} does not fit a message of {self.total} bytes")
        self.received, self.chunks = self.received + length, self.chunks + 1
        if self.received > self.total:
            raise StreamRefused(f"a message of {self.total} bytes has chunks that overlap")
        if self.view is None:
            return
        self.view[offset : offset + length] = frame.body
        self.apart[offset] = length
        while (length := self.apart.pop(self.gapless, 0)) > 0:
            # A chunk that came in order is hashed from the frame, which is still in the processor's cache.
            here = frame.body if self.gapless == offset else self.view[self.gapless : self.gapless + length]
            self.digest.update(here)
            self.gapless += length

    def check(self) -> None:
        """Raises StreamRefused where a complete message does not match its END frame."""
        if self.end is None or self.view is None:
            return
        if self.gapless != self.total or self.end.seq != self.chunks:
            raise StreamRefused(f"a message of {self.total} bytes has chunks that overlap")
        if self.end.digest != self.digest.intdigest():
            raise StreamRefused(f"a message of {self.total} bytes has a wrong digest")
