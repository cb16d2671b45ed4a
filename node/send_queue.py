"""What one node still has to send to one peer: a pure queue of messages that hands out frames.

Three priorities, first in first out within each; a more urgent message overtakes at the next chunk. A message stays
until the peer has acknowledged it; after a reconnect everything unacknowledged goes again from its beginning, with
the same transfer number, by which the receiver knows what it already has (it remembers one number per priority).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from ..proto import frame as frames
from ..proto.data_pb2 import Header
from ..proto.frame import Frame, Kind
from ..proto.rpc import CHUNK
from .shorten import Shortener
from .traffic import category_of

WHOLE_LIMIT = 256 << 10
"""Messages up to this size (header and payload) go as one frame."""


@dataclass(eq=False)
class Outgoing:
    """A message on its way. ``release`` is called once, when its payload is no longer needed."""

    transfer: int
    priority: int
    header: Header
    payload: memoryview
    release: Callable[[], None]
    offset: int = 0  # payload bytes handed out
    chunks: int = 0
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)

    @property
    def category(self) -> str:
        return category_of(self.header.kind)

    def rewind(self) -> None:
        self.offset = self.chunks = 0
        self.digest = xxhash.xxh3_64()


LEAST_CHUNK = 64 << 10

Parts = list[tuple[str, list[frames.Buffer]]]
"""The frames of one gRPC message: (category, buffers)."""


class SendQueue:
    """Messages to one peer. Not aware of time or sockets."""

    def __init__(self) -> None:
        self._waiting: list[deque[Outgoing]] = [deque() for _ in range(frames.PRIORITIES)]
        self._sent: list[deque[Outgoing]] = [deque() for _ in range(frames.PRIORITIES)]

    def put(self, message: Outgoing) -> None:
        self._waiting[message.priority].append(message)

    @property
    def waiting(self) -> bool:
        """Whether there is anything to write."""
        return any(self._waiting)

    @property
    def unfinished(self) -> int:
        """Messages that the peer has not acknowledged."""
        return sum(map(len, self._waiting)) + sum(map(len, self._sent))

    def urgent(self, below: int) -> bool:
        """Whether a message of a priority under `below` waits to be written."""
        return any(self._waiting[:below])

    def next_write(self, shortener: Shortener, room: int = CHUNK) -> Parts:
        """Frames for one gRPC message, most urgent first, of about ``room`` bytes; empty when nothing waits."""
        parts: Parts = []
        while room > 0:
            queue = next((queue for queue in self._waiting if queue), None)
            if queue is None:
                break
            message = queue[0]
            for frame in self._frames(message, room, shortener):
                buffers = frames.encode(frame)
                parts.append((message.category, buffers))
                room -= frames.size(buffers)
            if message.offset == len(message.payload):
                self._sent[message.priority].append(queue.popleft())
        return parts

    def acknowledge(self, priority: int, transfer: int) -> list[Outgoing]:
        """All of this priority up to `transfer` have arrived: they are released and returned."""
        done = []
        for queue in (self._sent[priority], self._waiting[priority]):
            # One that waits again after a reconnect may have arrived before it.
            while queue and queue[0].transfer <= transfer:
                done.append(queue.popleft())
        for message in done:
            message.release()
        return done

    def rewind(self) -> None:
        """The stream broke: everything unacknowledged waits again, in its old order."""
        for sent, waiting in zip(self._sent, self._waiting, strict=True):
            waiting.extendleft(reversed(sent))
            sent.clear()
            for message in waiting:
                message.rewind()

    def drop(self, unwanted: Callable[[Header], bool]) -> int:
        """Releases the messages whose header is `unwanted`, sent or not; returns how many."""
        dropped = 0
        for queue in (*self._waiting, *self._sent):
            gone = [message for message in queue if unwanted(message.header)]
            for message in gone:
                queue.remove(message)
                message.release()
            dropped += len(gone)
        return dropped

    @staticmethod
    def _frames(message: Outgoing, room: int, shortener: Shortener) -> list[Frame]:
        payload, transfer, priority = message.payload, message.transfer, message.priority
        out = []
        if message.offset == 0 and message.chunks == 0:
            head = shortener.shorten(message.header)
            if len(head) + len(payload) <= WHOLE_LIMIT:
                message.offset = len(payload)
                return [Frame(Kind.WHOLE, transfer, priority, head, payload)]
            out.append(Frame(Kind.OPEN, transfer, priority, head, total=len(payload)))
        begin = message.offset
        body = payload[begin : begin + max(room, LEAST_CHUNK)]
        message.digest.update(body)
        if body:
            out.append(Frame(Kind.CHUNK, transfer, priority, b"", body, message.chunks, begin, len(payload)))
        message.offset += len(body)
        message.chunks += 1
        if message.offset == len(payload):
            digest = message.digest.intdigest()
            out.append(
                Frame(Kind.END, transfer, priority, seq=message.chunks, total=len(payload), digest=digest, offset=0)
            )
        return out
