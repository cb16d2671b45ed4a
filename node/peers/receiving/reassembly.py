"""Puts the frames of one peer's streams together: each message of the link is delivered once, whole and in order.

All frames come on the first stream of a link, except chunks of large messages, which may come on any of its lanes. A
chunk may therefore arrive before the OPEN frame of its message; its lane then waits for that frame.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ....proto.connections import rpc
from ....proto.data_pb2 import Header
from ....proto.messages import frame as frames
from ....proto.messages.frame import Frame, Kind
from ...ipc.pipe import INLINE_LIMIT
from ..header_compression import Expander
from ..lanes import MOST
from ..traffic import Traffic, category_of
from .admission import TAKE, WAIT
from .arriving import Arriving, StreamRefused
from .inbox import Inbox

STALLED_SECONDS = 60.0
STALLED_BYTES = 1 << 16
"""A stream is ended if, in STALLED_SECONDS, neither this many bytes nor the end of an incomplete message arrives: the
message holds memory that others need."""


class Lane:
    """One stream of a link. A message whose last frame came on it is acknowledged on it. Number 0: the first stream."""

    def __init__(self, stream: Stream, end: rpc.PeerContext | rpc.PeerCall, number: int = 0) -> None:
        self.end, self.number, self.done = end, number, dict[int, tuple[int, str]]()
        self.stopped = ""
        """Why this node ends the stream."""
        self.waits = True
        """Whether its task waits for the sender, so that it may be cancelled."""
        self._stream, self._task = stream, asyncio.current_task()

    def stop(self, why: str) -> None:
        """End the stream: at once if it waits for its sender, else after the message that it handles."""
        self.stopped = self.stopped or why
        if self._task is not None and self.waits:
            self._task.cancel()

    async def take(self, message: bytes) -> None:
        """Take in one gRPC message of frames. FrameError, ValueError or StreamRefused if a frame is not valid."""
        self.waits = False
        self._stream.inbound.traffic.took_in(len(message), self._stream.sender)
        for frame in frames.decode(message):
            await self._stream.take(frame, self)
        await self.acknowledge()
        self.waits = True

    async def acknowledge(self) -> None:
        await self._stream.inbound.acknowledge(self.end, self.done)


class Receiver(Protocol):
    """The owner of a stream: decides which messages of a peer are taken, and remembers which were delivered
    (server.py)."""

    run: str
    inbox: Inbox
    traffic: Traffic

    def reserved(self, sender: str) -> int: ...
    def is_new(self, stream: Stream, priority: int, transfer: int) -> bool: ...
    def delivered(self, stream: Stream, priority: int, transfer: int) -> None: ...
    def judge(self, stream: Stream, header: Header) -> str: ...
    async def verdict(self, stream: Stream, header: Header) -> str: ...
    async def acknowledge(self, end: rpc.PeerContext | rpc.PeerCall, done: dict[int, tuple[int, str]]) -> None: ...


class Stream:
    """A peer's first stream with its further lanes, and the messages that are incomplete."""

    def __init__(
        self,
        inbound: Receiver,
        end: rpc.PeerContext | rpc.PeerCall,
        sender: str,
        session: str,
        link: int = 0,
        open_lane: Callable[[Stream, int], None] | None = None,
    ) -> None:
        self.sender, self.session, self.link, self.inbound = sender, session, link, inbound
        self.lane = Lane(self, end)
        self.lanes: list[Lane] = []
        self.reading = True
        self._open_lane, self._asked = open_lane, set[int]()
        self._expander = Expander(inbound.run, session)
        self._arriving: list[deque[Arriving]] = [deque() for _ in range(frames.PRIORITIES)]
        self._begun = [0] * frames.PRIORITIES  # the last message of each priority that was opened or cancelled
        self._opened = asyncio.Event()
        self._clock = asyncio.get_running_loop()
        self._moved, self._unmarked = self._clock.time(), 0
        self._timer = self._clock.call_later(STALLED_SECONDS, self._check)

    @property
    def reserved(self) -> int:
        """Bytes of memory that its incomplete messages hold."""
        return sum(one.total for queue in self._arriving for one in queue if one.start is not None)

    def stop(self, why: str) -> None:
        """End the first stream, and with it the others."""
        self.lane.stop(why)

    def close(self) -> None:
        """The first stream has ended: end the lanes and drop the incomplete messages."""
        self._timer.cancel()
        self.reading = False
        self._opened.set()
        for lane in self.lanes:
            lane.stop("the first stream of this link has ended")
        for queue in self._arriving:
            for arriving in list(queue):
                self._forget(arriving)
        self.lane.end = None  # breaks a reference cycle that would keep the call and its connection open

    def _check(self) -> None:
        """End the stream of a sender whose incomplete message makes no progress: it holds memory. The sender
        connects again."""
        late = self._clock.time() - self._moved
        if self.lane.waits and any(self._arriving) and late > STALLED_SECONDS:
            self.stop(f"nothing of an incomplete message came for {late:.0f} s")
            return
        self._timer = self._clock.call_later(STALLED_SECONDS / 4, self._check)

    def _mark(self, count: int) -> None:
        self._unmarked += count
        if self._unmarked >= STALLED_BYTES or not any(self._arriving):
            self._moved, self._unmarked = self._clock.time(), 0

    async def take(self, frame: Frame, lane: Lane) -> None:
        """Take in one frame that came on ``lane``."""
        if frame.kind is Kind.CHUNK or frame.kind is Kind.END:
            arriving = await self._continued(frame, lane)
            if arriving is None:
                return
            if frame.kind is Kind.CHUNK:
                arriving.add(frame)
            elif arriving.end is None and frame.total == arriving.total:
                arriving.end = frame
            else:
                raise StreamRefused(f"the end at {frame.total} of a message of {arriving.total} bytes")
            self._settle(frame.priority, lane)
        elif lane is not self.lane:
            raise StreamRefused(f"sent a frame of kind {frame.kind.name} by lane {lane.number}")
        elif frame.kind is Kind.WHOLE:
            await self._whole(frame)
        elif frame.kind is Kind.OPEN:
            await self._open(frame)
        elif frame.kind is Kind.CANCEL:
            self._cancel(frame)
        elif frame.kind is Kind.LANE:
            self._ask_for_lane(frame.transfer)
        else:
            raise StreamRefused(f"sent a frame of kind {frame.kind.name}, which only the receiver sends")
        self._mark(len(frame.body))

    async def _admit(self, header: Header, priority: int, transfer: int) -> str:
        verdict = self.inbound.judge(self, header)
        if verdict == WAIT:  # acknowledge what has arrived before a wait of unknown length
            await self.lane.acknowledge()
            verdict = await self.inbound.verdict(self, header)
        if verdict == TAKE and not self.inbound.is_new(self, priority, transfer):
            verdict = "twice"
        return verdict

    async def _whole(self, frame: Frame) -> None:
        header = self._expander.expand(bytes(frame.head))
        verdict = await self._admit(header, frame.priority, frame.transfer)
        arriving = Arriving(frame.transfer, frame.priority, header, len(frame.body), whole=True)
        if verdict == TAKE and len(frame.body) > INLINE_LIMIT:
            arriving.start = await self.inbound.inbox.block(len(frame.body))
            self.inbound.inbox.view(arriving.start, len(frame.body))[:] = frame.body
        elif verdict == TAKE:
            await self.inbound.inbox.room(len(frame.body))
            arriving.body = bytes(frame.body)
        else:
            self._throw_away(verdict)
        self._begin(arriving)
        self._settle(frame.priority, self.lane)

    async def _open(self, frame: Frame) -> None:
        header = self._expander.expand(bytes(frame.head))
        verdict = await self._admit(header, frame.priority, frame.transfer)
        arriving = Arriving(frame.transfer, frame.priority, header, frame.total)
        if verdict == TAKE:
            largest, held = self.inbound.inbox.largest, self.inbound.reserved(self.sender)
            if held + frame.total > largest:
                raise StreamRefused(f"a message of {frame.total} bytes beside {held}, where {largest} are the most")
            arriving.start = await self.inbound.inbox.block(frame.total)
            arriving.view = self.inbound.inbox.view(arriving.start, frame.total)
        else:
            self._throw_away(verdict)
        self._begin(arriving)

    def _begin(self, arriving: Arriving) -> None:
        self._arriving[arriving.priority].append(arriving)
        self.inbound.traffic.arriving(1)
        self._begun_to(arriving.priority, arriving.transfer)

    def _begun_to(self, priority: int, transfer: int) -> None:
        self._begun[priority] = max(self._begun[priority], transfer)
        self._opened.set()
        self._opened = asyncio.Event()

    async def _continued(self, frame: Frame, lane: Lane) -> Arriving | None:
        """The message that a frame belongs to; waits until it was opened. None if it has been cancelled."""
        while True:
            for arriving in self._arriving[frame.priority]:
                if arriving.transfer == frame.transfer:
                    return arriving
            if lane is self.lane or not self.reading:
                raise StreamRefused(f"{frame.kind.name} of message {frame.transfer}, which was not opened")
            if frame.transfer <= self._begun[frame.priority]:
                return None
            await self._opened.wait()

    def _cancel(self, frame: Frame) -> None:
        for arriving in list(self._arriving[frame.priority]):
            if arriving.transfer == frame.transfer:
                self._forget(arriving)
        self._begun_to(frame.priority, frame.transfer)
        self._settle(frame.priority, self.lane)

    def _ask_for_lane(self, number: int) -> None:
        if self._open_lane is None or not 0 < number <= MOST or number in self._asked:
            raise StreamRefused(f"asks for lane {number}, which is not to be had")
        self._asked.add(number)
        self._open_lane(self, number)

    def _settle(self, priority: int, lane: Lane) -> None:
        """Delivers the complete messages at the head of the queue; they are acknowledged on ``lane``."""
        queue = self._arriving[priority]
        while queue and queue[0].complete:
            arriving = queue[0]
            arriving.check()
            queue.popleft()
            self.inbound.traffic.arriving(-1)
            self._deliver(arriving)
            self.inbound.delivered(self, priority, arriving.transfer)
            lane.done[priority] = (arriving.transfer, category_of(arriving.header.kind))

    def _deliver(self, arriving: Arriving) -> None:
        """Deliver a message if the view still admits it and no other stream of the peer delivered it meanwhile."""
        start, body, header = arriving.start, arriving.body, arriving.header
        if start is None and body is None:
            return  # it was dropped when it was opened
        inbox = self.inbound.inbox
        verdict = self.inbound.judge(self, header)
        if verdict == TAKE and not self.inbound.is_new(self, arriving.priority, arriving.transfer):
            verdict = "twice"
        if verdict != TAKE:
            self._throw_away(verdict)
            if start is not None:
                inbox.discard(start)
        elif start is not None:
            inbox.deliver_block(self.sender, header.SerializeToString(), start, arriving.total)
        elif body is not None:
            inbox.deliver_inline(self.sender, header.SerializeToString(), body)

    def _forget(self, arriving: Arriving) -> None:
        self._arriving[arriving.priority].remove(arriving)
        self.inbound.traffic.arriving(-1)
        self.inbound.traffic.dropped["incomplete"] += 1
        if arriving.start is not None:
            arriving.view = None
            self.inbound.inbox.discard(arriving.start)

    def _throw_away(self, why: str) -> None:
        if why != "probe":
            self.inbound.traffic.dropped[why] += 1
