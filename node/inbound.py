"""The receiving end of streams: of those that other nodes open to this one, and of those that it had to open itself.

A stream begins with a greeting that is checked (run, name in the certificate, who is meant). Then frames are put
together; a message is delivered only when it is complete and its digest is right, once, and is then acknowledged.
Whatever is wrong with a stream ends that stream, with a sentence for the other side and a count: never the process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field

import xxhash
from google.protobuf.message import DecodeError

from ..proto import PROTOCOL, rpc
from ..proto import frame as frames
from ..proto.data_pb2 import Greeting, Header
from ..proto.data_pb2 import Kind as Message
from ..proto.frame import Frame, FrameError, Kind
from .handover import INLINE_LIMIT
from .inbox import ArenaFull, Inbox
from .membership import TAKE, WAIT, Membership
from .offers import Offers
from .shorten import Expander
from .traffic import OTHER, Traffic, category_of

GREETING_SECONDS = 20.0
"""A stream that has not said by then who it is ends."""
MOST_STRANGERS = 64
"""Streams that have not greeted yet."""
MOST_STREAMS = 8
"""Of one peer: two of each direction, while an older session or stream of it is on its way out."""
STALLED_SECONDS = 60.0
STALLED_BYTES = 1 << 16
"""An incomplete message of which so much, or its end, does not come in so long holds memory that others need."""


class StreamRefused(Exception):
    """The stream cannot go on; the text goes to the other side."""


@dataclass
class Arriving:
    """A large message of which some chunks have arrived. Without a block it is received and thrown away."""

    transfer: int
    header: Header
    total: int
    start: int | None
    view: memoryview | None
    received: int = 0
    chunks: int = 0
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)


class Inbound:
    """Serves the peers' streams of one node."""

    def __init__(
        self,
        run: str,
        name: str,
        session: str,
        secure: bool,
        membership: Membership,
        inbox: Inbox,
        traffic: Traffic,
        protocol: int = PROTOCOL,
    ) -> None:
        self.run, self.name, self.session, self.secure = run, name, session, secure
        self.membership, self.inbox, self.traffic, self.protocol = membership, inbox, traffic, protocol
        self.offers = Offers()
        self._last: dict[tuple[str, str], list[int]] = {}  # (name, session) -> last transfer of each priority
        self._current: dict[tuple[str, str], Stream] = {}  # newest stream of each; an older one is superseded
        self._strangers = 0
        self._open: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def view_changed(self) -> None:
        """Streams that wait for a view look again; sessions that are gone are forgotten."""
        self._changed.set()
        self._changed = asyncio.Event()
        sessions = {(member.name, member.session) for member in self.membership.members.values()}
        for key in [key for key in self._last if key not in sessions and key not in self._current]:
            del self._last[key]

    async def serve(self, context: rpc.PeerContext) -> None:
        """One stream from its greeting to its end, whatever that is."""
        with contextlib.suppress(*rpc.BROKEN):  # the other side is gone: nobody to tell
            await self._serve(context)

    async def _serve(self, context: rpc.PeerContext) -> None:
        try:
            greeting = await self._greeted(context)
        except (FrameError, StreamRefused) as error:
            self.traffic.dropped["greeting refused"] += 1
            await self._write(context, [(OTHER, Frame(Kind.REFUSE, head=str(error).encode()))])
            return
        self._open[greeting.name] += 1
        try:
            await self._write(context, [(OTHER, Frame(Kind.WELCOME))])
            if greeting.you_send:
                await self.offers.serve(context, greeting.name, greeting.session)
            else:
                await self.receive(context, greeting.name, greeting.session)
        finally:
            self._open[greeting.name] -= 1

    async def _greeted(self, context: rpc.PeerContext) -> Greeting:
        if self._strangers >= MOST_STRANGERS:
            raise StreamRefused(f"{MOST_STRANGERS} streams have not said yet who they are")
        self._strangers += 1
        try:
            first = await asyncio.wait_for(context.read(), GREETING_SECONDS)
        except asyncio.TimeoutError:
            raise StreamRefused(f"no greeting within {GREETING_SECONDS:.0f} s") from None
        finally:
            self._strangers -= 1
        greeting = self._greeting(first, context)
        if self._open[greeting.name] >= MOST_STREAMS:
            raise StreamRefused(f"{greeting.name} has {MOST_STREAMS} streams open here already")
        return greeting

    async def receive(self, end: rpc.PeerContext | rpc.PeerCall, sender: str, session: str) -> None:
        """Takes what a peer sends on a greeted stream, until it ends or does not fit."""
        refusal = ""
        key = (sender, session)
        if (old := self._current.get(key)) is not None:
            old.stop("a newer stream has taken its place")
        stream = self._current[key] = Stream(self, end, sender, session)
        try:
            while self._current.get(key) is stream:
                message = await end.read()
                if message is rpc.END:
                    break  # also what a sender that was killed looks like: incomplete messages are dropped below
                await stream.take(message)
        except (FrameError, StreamRefused, ArenaFull, ValueError) as error:
            refusal = str(error)
        except asyncio.CancelledError:
            if not stream.stopped:
                raise
            refusal = stream.stopped
        finally:
            stream.close()
            if self._current.get(key) is stream:
                del self._current[key]
        if refusal:
            self.traffic.dropped["stream ended here" if stream.stopped else "broken frame"] += 1
            await self._write(end, [(OTHER, Frame(Kind.REFUSE, head=refusal.encode()))])

    def reserved(self, sender: str) -> int:
        """Bytes that incomplete messages of a peer hold."""
        return sum(stream.reserved for (name, _), stream in self._current.items() if name == sender)

    def is_new(self, stream: Stream, priority: int, transfer: int) -> bool:
        """Whether this transfer has not been delivered before (transfers of a priority arrive in order)."""
        return transfer > self._last.setdefault((stream.sender, stream.session), [0] * frames.PRIORITIES)[priority]

    def delivered(self, stream: Stream, priority: int, transfer: int) -> None:
        last = self._last.setdefault((stream.sender, stream.session), [0] * frames.PRIORITIES)
        last[priority] = max(last[priority], transfer)

    async def verdict(self, stream: Stream, header: Header) -> str:
        """TAKE, or why the message is thrown away; waits for a view that this node has yet to enter."""
        while (verdict := self.judge(stream, header)) == WAIT:
            await self._changed.wait()
        return verdict

    def judge(self, stream: Stream, header: Header) -> str:
        if header.kind == Message.PROBE and stream.sender not in self.membership.revoked:
            return "probe"
        return self.membership.verdict(stream.sender, stream.session, header.view)

    async def acknowledge(self, end: rpc.PeerContext | rpc.PeerCall, done: dict[int, tuple[int, str]]) -> None:
        """Writes one ACK for each priority: {priority: (transfer, category)}; clears `done`."""
        if done:
            acks = [(category, Frame(Kind.ACK, transfer, priority)) for priority, (transfer, category) in done.items()]
            done.clear()
            await self._write(end, acks)

    async def _write(self, end: rpc.PeerContext | rpc.PeerCall, parts: list[tuple[str, Frame]]) -> None:
        encoded = [(category, b"".join(frames.encode(frame))) for category, frame in parts]
        self.traffic.wrote((category, len(data)) for category, data in encoded)
        await end.write(b"".join(data for _, data in encoded))

    def _greeting(self, message: object, context: rpc.PeerContext) -> Greeting:
        if not isinstance(message, bytes):
            raise StreamRefused("the stream ended before its greeting")
        first = frames.decode(message)[0] if message else None
        if first is None or first.kind is not Kind.HELLO:
            raise StreamRefused("the stream does not begin with a greeting")
        try:
            greeting = Greeting.FromString(bytes(first.head))
        except DecodeError as error:
            raise StreamRefused("the greeting cannot be read") from error
        if greeting.protocol != self.protocol:
            raise StreamRefused(f"speaks protocol {greeting.protocol}, node {self.name} speaks {self.protocol}")
        if greeting.run != self.run:
            raise StreamRefused(f"is in run {greeting.run}, node {self.name} is in {self.run}")
        if greeting.name in self.membership.revoked:
            raise StreamRefused(f"{greeting.name} was evicted from the run")
        if self.secure and greeting.name not in rpc.peer_names(context):
            raise StreamRefused(f"says it is {greeting.name}, but its certificate says otherwise")
        if greeting.to != self.name:
            raise StreamRefused(f"wants {greeting.to}, but this is {self.name}")
        if greeting.to_session != self.session:
            raise StreamRefused(f"wants an earlier session of {self.name}, which has restarted")
        return greeting


class Stream:
    """One peer's stream: its texts, its incomplete messages (at most one in each priority), its acknowledgements."""

    def __init__(self, inbound: Inbound, end: rpc.PeerContext | rpc.PeerCall, sender: str, session: str) -> None:
        self.sender, self.session = sender, session
        self._inbound, self._end_of_stream = inbound, end
        self._expander = Expander(inbound.run, session)
        self._arriving: list[Arriving | None] = [None] * frames.PRIORITIES
        self._done: dict[int, tuple[int, str]] = {}
        self.stopped = ""
        """Why this node ends the stream."""
        self._task = asyncio.current_task()
        self._clock = asyncio.get_running_loop()
        self._reading = True
        self._moved, self._unmarked = self._clock.time(), 0
        self._timer = self._clock.call_later(STALLED_SECONDS, self._check)

    @property
    def reserved(self) -> int:
        """Bytes that its incomplete messages hold."""
        return sum(one.total for one in self._arriving if one is not None and one.start is not None)

    def stop(self, why: str) -> None:
        """End the stream, which waits for its sender."""
        self.stopped = self.stopped or why
        if self._task is not None and self._reading:
            self._task.cancel()

    def close(self) -> None:
        """The stream has ended: what is incomplete is dropped."""
        self._timer.cancel()
        self._task = None
        for priority in range(frames.PRIORITIES):
            self._forget(priority)

    def _check(self) -> None:
        """A sender that lets an incomplete message lie holds memory; it has to connect again."""
        late = self._clock.time() - self._moved
        if self._reading and any(self._arriving) and late > STALLED_SECONDS:
            self.stop(f"nothing of an incomplete message came for {late:.0f} s")
            return
        self._timer = self._clock.call_later(STALLED_SECONDS / 4, self._check)

    def _mark(self, count: int) -> None:
        self._unmarked += count
        if self._unmarked >= STALLED_BYTES or not any(self._arriving):
            self._moved, self._unmarked = self._clock.time(), 0

    async def take(self, message: bytes) -> None:
        """One gRPC message of frames. FrameError, ValueError or StreamRefused for what does not fit."""
        self._reading = False
        for frame in frames.decode(message):
            if frame.kind is Kind.WHOLE:
                await self._whole(frame)
            elif frame.kind is Kind.OPEN:
                await self._open(frame)
            elif frame.kind is Kind.CHUNK:
                self._chunk(frame)
            elif frame.kind is Kind.END:
                self._end(frame)
            else:
                raise StreamRefused(f"sent a frame of kind {frame.kind.name}, which only the receiver sends")
            self._mark(len(frame.body))
        await self._inbound.acknowledge(self._end_of_stream, self._done)
        self._reading = True

    async def _admit(self, header: Header, priority: int, transfer: int) -> str:
        verdict = self._inbound.judge(self, header)
        if verdict == WAIT:  # what has arrived is acknowledged before a pause of unknown length
            await self._inbound.acknowledge(self._end_of_stream, self._done)
            verdict = await self._inbound.verdict(self, header)
        if verdict == TAKE and not self._inbound.is_new(self, priority, transfer):
            verdict = "twice"
        return verdict

    async def _whole(self, frame: Frame) -> None:
        header = self._expander.expand(bytes(frame.head))
        verdict = await self._admit(header, frame.priority, frame.transfer)
        if verdict == TAKE and len(frame.body) > INLINE_LIMIT:
            start = await self._inbound.inbox.block(len(frame.body))
            self._inbound.inbox.view(start, len(frame.body))[:] = frame.body
            self._deliver(frame, header, start, len(frame.body))
        elif verdict == TAKE:
            await self._inbound.inbox.room(len(frame.body))
            self._deliver(frame, header, bytes(frame.body), len(frame.body))
        else:
            self._throw_away(verdict)
        self._acknowledge(frame, header)

    async def _open(self, frame: Frame) -> None:
        header = self._expander.expand(bytes(frame.head))
        self._forget(frame.priority)  # its sender gave it up, with its view
        verdict = await self._admit(header, frame.priority, frame.transfer)
        arriving = Arriving(frame.transfer, header, frame.total, None, None)
        if verdict == TAKE:
            largest, held = self._inbound.inbox.largest, self._inbound.reserved(self.sender)
            if held + frame.total > largest:
                raise StreamRefused(f"a message of {frame.total} bytes beside {held}, where {largest} are the most")
            arriving.start = await self._inbound.inbox.block(frame.total)
            arriving.view = self._inbound.inbox.view(arriving.start, frame.total)
        else:
            self._throw_away(verdict)
        self._arriving[frame.priority] = arriving
        self._inbound.traffic.arriving(1)

    def _chunk(self, frame: Frame) -> None:
        arriving = self._continued(frame)
        end = frame.offset + len(frame.body)
        if frame.offset != arriving.received or frame.seq != arriving.chunks or end > arriving.total:
            raise StreamRefused(f"chunk {frame.seq} at {frame.offset} does not follow {arriving.received} bytes")
        if arriving.view is not None:
            arriving.view[frame.offset : end] = frame.body
        arriving.digest.update(frame.body)
        arriving.received, arriving.chunks = end, arriving.chunks + 1

    def _end(self, frame: Frame) -> None:
        arriving = self._continued(frame)
        if arriving.received != arriving.total or frame.total != arriving.total:
            raise StreamRefused(f"message ended at {arriving.received} of {arriving.total} bytes")
        if frame.digest != arriving.digest.intdigest():
            raise StreamRefused(f"message of {arriving.total} bytes has a wrong digest")
        self._arriving[frame.priority] = None
        self._inbound.traffic.arriving(-1)
        if arriving.start is not None:
            arriving.view = None
            self._deliver(frame, arriving.header, arriving.start, arriving.total)
        self._acknowledge(frame, arriving.header)

    def _deliver(self, frame: Frame, header: Header, payload: bytes | int, length: int) -> None:
        """Judged again: the view, or another stream of this peer, may have moved on while it arrived."""
        inbox = self._inbound.inbox
        verdict = self._inbound.judge(self, header)
        if verdict == TAKE and not self._inbound.is_new(self, frame.priority, frame.transfer):
            verdict = "twice"
        if verdict != TAKE:
            self._throw_away(verdict)
            if isinstance(payload, int):
                inbox.discard(payload)
        elif isinstance(payload, int):
            inbox.deliver_block(self.sender, header.SerializeToString(), payload, length)
        else:
            inbox.deliver_inline(self.sender, header.SerializeToString(), payload)

    def _acknowledge(self, frame: Frame, header: Header) -> None:
        self._inbound.delivered(self, frame.priority, frame.transfer)
        self._done[frame.priority] = (frame.transfer, category_of(header.kind))

    def _continued(self, frame: Frame) -> Arriving:
        arriving = self._arriving[frame.priority]
        if arriving is None or arriving.transfer != frame.transfer:
            raise StreamRefused(f"{frame.kind.name} of message {frame.transfer}, which was not opened")
        return arriving

    def _forget(self, priority: int) -> None:
        arriving = self._arriving[priority]
        self._arriving[priority] = None
        if arriving is not None:
            self._inbound.traffic.arriving(-1)
            self._inbound.traffic.dropped["incomplete"] += 1
            if arriving.start is not None:
                arriving.view = None
                self._inbound.inbox.discard(arriving.start)

    def _throw_away(self, why: str) -> None:
        if why != "probe":
            self._inbound.traffic.dropped[why] += 1
