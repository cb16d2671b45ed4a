"""The messages that one node still has to send to one peer: a pure queue that hands out frames.

There are three priorities, first in first out within each; a more urgent message overtakes at the next chunk. A message
stays until the peer has acknowledged it; after a reconnect each unacknowledged message is sent again from its beginning
with the same transfer number, by which the receiver knows whether it has it (it remembers one number per priority).

If a link has several streams, the chunks of large messages go on the bulk streams, each chunk on any that is free; all
else, the headers of large messages too, goes on the first, whose buffers thus never hold bulk.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from ....proto.connections.rpc import CHUNK
from ....proto.data_pb2 import Header
from ....proto.messages import frame as frames
from ....proto.messages.frame import Frame, Kind
from ..header_compression import Shortener
from ..traffic import category_of

WHOLE_LIMIT = 256 << 10
"""Messages of up to so many bytes (header and payload) are sent as one frame."""
LARGE = 32 << 10
"""Payloads of more bytes go on the bulk streams, if there are any. Urgent ones too: the windows of these streams are
open, and urgent chunks are handed out first."""


class Carries(enum.Enum):
    """What a stream carries."""

    ALL = enum.auto()  # everything: it is the link's only stream
    HEADS = enum.auto()  # everything but chunks of bulk messages
    CHUNKS = enum.auto()  # only chunks of bulk messages
    NONE = enum.auto()


@dataclass(eq=False)
class Outgoing:
    """A message to be sent. ``release`` is called once, when its payload is no longer needed."""

    transfer: int
    priority: int
    header: Header
    payload: memoryview
    release: Callable[[], None]
    offset: int = 0  # payload bytes handed out
    chunks: int = 0
    opened: bool = False  # a part of it was handed out
    whole: bool = False  # all of it was handed out, on this stream or an earlier one: only then can it have arrived
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)

    @property
    def category(self) -> str:
        return category_of(self.header.kind)

    @property
    def bulk(self) -> bool:
        return len(self.payload) > LARGE

    def rewind(self) -> None:
        self.offset = self.chunks = 0
        self.opened = False
        self.digest = xxhash.xxh3_64()


LEAST_CHUNK = 64 << 10

Parts = list[tuple[str, list[frames.Buffer]]]
"""The frames of one gRPC message: (category, buffers)."""


class SendQueue:
    """Messages to one peer. Knows neither time nor sockets."""

    def __init__(self) -> None:
        self._waiting: list[deque[Outgoing]] = [deque() for _ in range(frames.PRIORITIES)]
        self._sent: list[deque[Outgoing]] = [deque() for _ in range(frames.PRIORITIES)]
        self._heads: deque[tuple[Outgoing, Kind]] = deque()  # OPEN, CANCEL and LANE for the first stream

    def put(self, message: Outgoing) -> None:
        self._waiting[message.priority].append(message)

    def ask_for_lane(self, number: int) -> None:
        """Queue a frame that asks the peer to open lane ``number``."""
        self._heads.append((Outgoing(number, 0, Header(), memoryview(b""), lambda: None), Kind.LANE))

    def waiting(self, carries: Carries = Carries.ALL) -> bool:
        """Whether a frame waits for a stream of this kind."""
        heads = carries in (Carries.ALL, Carries.HEADS) and bool(self._heads)
        return heads or any(queue and _fits(queue[0], carries) for queue in self._waiting)

    @property
    def unfinished(self) -> int:
        """Messages that the peer has not acknowledged."""
        return sum(map(len, self._waiting)) + sum(map(len, self._sent))

    def urgent(self, below: int) -> bool:
        """Whether a message of a priority under `below` waits to be written."""
        return any(self._waiting[:below])

    def next_write(self, shortener: Shortener, room: int = CHUNK, carries: Carries = Carries.ALL) -> Parts:
        """Frames for one gRPC message, most urgent first, of about ``room`` bytes; empty when nothing waits."""
        parts: Parts = []
        while carries is not Carries.CHUNKS and self._heads:
            message, kind = self._heads.popleft()
            head = shortener.shorten(message.header) if kind is Kind.OPEN else b""
            frame = Frame(kind, message.transfer, message.priority, head, total=len(message.payload))
            parts.append((message.category, frames.encode(frame)))
            room -= frames.size(parts[-1][1])
        while room > 0:
            queue = next((queue for queue in self._waiting if queue and _fits(queue[0], carries)), None)
            if queue is None:
                break
            message = queue[0]
            if carries is Carries.CHUNKS and not message.opened:
                self._heads.append((message, Kind.OPEN))
                message.opened = True
            for frame in self._frames(message, room, shortener):
                buffers = frames.encode(frame)
                parts.append((message.category, buffers))
                room -= frames.size(buffers)
            if message.offset == len(message.payload):
                message.whole = True
                self._sent[message.priority].append(queue.popleft())
        return parts

    def acknowledge(self, priority: int, transfer: int) -> list[Outgoing]:
        """The messages of this priority up to `transfer` have arrived: release and return them. A message that was
        never handed out whole stays, because an acknowledgement of it must be wrong."""
        done = []
        for queue in (self._sent[priority], self._waiting[priority]):
            # A message that waits again after a reconnect may have arrived before the reconnect.
            while queue and queue[0].transfer <= transfer and queue[0].whole:
                done.append(queue.popleft())
        for message in done:
            message.release()
        return done

    def rewind(self) -> None:
        """The stream broke: all unacknowledged messages wait again, in their old order."""
        for sent, waiting in zip(self._sent, self._waiting, strict=True):
            waiting.extendleft(reversed(sent))
            sent.clear()
            for message in waiting:
                message.rewind()
        self._heads.clear()

    def drop(self, unwanted: Callable[[Header], bool]) -> int:
        """Releases the messages whose header is `unwanted`, sent or not; a CANCEL frame is queued for those that were
        begun. Returns how many."""
        dropped = 0
        for queue in (*self._waiting, *self._sent):
            gone = [message for message in queue if unwanted(message.header)]
            for message in gone:
                queue.remove(message)
                message.release()
                if message.opened and message.offset < len(message.payload):
                    self._heads.append((message, Kind.CANCEL))
            dropped += len(gone)
        return dropped

    @staticmethod
    def _frames(message: Outgoing, room: int, shortener: Shortener) -> list[Frame]:
        payload, transfer, priority = message.payload, message.transfer, message.priority
        out = []
        if not message.opened:
            message.opened = True
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


def _fits(message: Outgoing, carries: Carries) -> bool:
    return carries is Carries.ALL or carries is (Carries.CHUNKS if message.bulk else Carries.HEADS)
