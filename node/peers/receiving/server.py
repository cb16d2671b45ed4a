"""The receiving end of streams, both those that other nodes open to this one and those that this node opens itself.

A stream begins with a greeting that is checked (run, name in the certificate, recipient). Then frames are put together;
a message is delivered once, when it is complete and its digest is right, and is then acknowledged. An error in a stream
ends that stream, with a sentence for the other side and a count; it never ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from ....proto.connections import rpc
from ....proto.connections.door import Door
from ....proto.connections.sockets import end_of
from ....proto.data_pb2 import Greeting, Header
from ....proto.data_pb2 import Kind as Message
from ....proto.messages import frame as frames
from ....proto.messages.frame import Frame, FrameError, Kind
from ..greeting import Self, within
from ..offers import Offer, Offers
from ..traffic import OTHER, Traffic
from .admission import WAIT, Membership
from .arriving import StreamRefused
from .inbox import ArenaFull, Inbox
from .reassembly import Lane, Stream

GREETING_SECONDS = 20.0
"""Seconds after which a stream without a greeting is ended."""
CLOSING_SECONDS = 1.0
"""Seconds that a stream has to finish after this node ends it."""
MOST_STRANGERS = 64
"""The most streams that have not greeted yet."""
MOST_STREAMS = 24
"""The most streams of one peer: all lanes of both directions, and as many of an older session or connection that is
ending."""


class Inbound:
    """Serves the peers' streams of one node."""

    def __init__(self, me: Self, membership: Membership, inbox: Inbox, traffic: Traffic) -> None:
        self.run, self.name, self.session, self.secure = me.run, me.name, me.session, me.credentials.secure
        self.membership, self.inbox, self.traffic, self.protocol = membership, inbox, traffic, me.protocol
        self.offers = Offers()
        self.door = Door()
        """Limits connections without a greeting; it knows the port once the server listens."""
        self._last: dict[tuple[str, str], list[int]] = {}  # (name, session) -> last transfer of each priority
        self._current: dict[tuple[str, str], Stream] = {}  # newest stream of each; an older one is superseded
        self._strangers = 0
        self._open: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._serving: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def close(self) -> None:
        """End all streams, and accept no more. (gRPC would end open ones with a warning when the server stops.)"""
        self._closed = True
        if tasks := list(self._serving):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CLOSING_SECONDS)

    def view_changed(self) -> None:
        """The view has changed: wake the streams that wait for a view, and forget sessions that are gone."""
        self._changed.set()
        self._changed = asyncio.Event()
        sessions = {(member.name, member.session) for member in self.membership.members.values()}
        for key in [key for key in self._last if key not in sessions and key not in self._current]:
            del self._last[key]

    async def serve(self, context: rpc.PeerContext) -> None:
        """Serves one stream from its greeting to its end."""
        if self._closed:
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(*rpc.BROKEN):  # the other side is gone: nobody to tell
                await self._serve(context)
        except asyncio.CancelledError:
            if not self._closed:
                raise
        finally:
            self._serving.discard(task)

    async def _serve(self, context: rpc.PeerContext) -> None:
        try:
            greeting = await self._greeted(context)
        except (FrameError, StreamRefused) as error:
            self.traffic.dropped["greeting refused"] += 1
            await self._write(context, [(OTHER, Frame(Kind.REFUSE, head=str(error).encode()))])
            return
        self._open[greeting.name] += 1
        try:
            if greeting.lane:
                await self._serve_lane(context, greeting)
                return
            await self._write(context, [(OTHER, Frame(Kind.WELCOME))])
            if greeting.you_send:
                await self.offers.serve(context, greeting.name, greeting.session, greeting.link)
            else:
                await self.receive(context, greeting.name, greeting.session, greeting.link)
        finally:
            self._open[greeting.name] -= 1

    async def _greeted(self, context: rpc.PeerContext) -> Greeting:
        if self._strangers >= MOST_STRANGERS:
            raise StreamRefused(f"{MOST_STRANGERS} streams have not said yet who they are")
        self._strangers += 1
        try:
            first = await within(GREETING_SECONDS, context.read())
        except asyncio.TimeoutError:
            raise StreamRefused(f"no greeting within {GREETING_SECONDS:.0f} s") from None
        finally:
            self._strangers -= 1
        greeting = self._greeting(first, context)
        self.door.proved(end_of(context.peer()))
        if self._open[greeting.name] >= MOST_STREAMS:
            raise StreamRefused(f"{greeting.name} has {MOST_STREAMS} streams open here already")
        return greeting

    async def receive(
        self,
        end: rpc.PeerContext | rpc.PeerCall,
        sender: str,
        session: str,
        link: int = 0,
        open_lane: Callable[[Stream, int], None] | None = None,
    ) -> None:
        """Takes what a peer sends on a greeted stream, until the stream ends or breaks the protocol.
        ``open_lane(stream, number)`` opens a lane that the peer asks for."""
        key = (sender, session)
        if (old := self._current.get(key)) is not None:
            old.stop("a newer stream has taken its place")
        stream = self._current[key] = Stream(self, end, sender, session, link, open_lane)
        try:
            await self._take_all(stream.lane, lambda: self._current.get(key) is stream)
        finally:
            stream.close()
            if self._current.get(key) is stream:
                del self._current[key]

    async def _serve_lane(self, end: rpc.PeerContext, greeting: Greeting) -> None:
        """Serve a stream that carries only chunks, beside the first stream of the same link; it ends with the first."""
        key = greeting.name, greeting.session
        asked = self.offers.asked_for(*key, greeting.link, greeting.lane) if greeting.you_send else None
        stream = None if greeting.you_send else self._current.get(key)
        if asked is None and (stream is None or stream.link != greeting.link):
            why = b"nobody asked for this lane" if greeting.you_send else b"the first stream of this link has ended"
            await self._write(end, [(OTHER, Frame(Kind.REFUSE, head=why))])
            return
        await self._write(end, [(OTHER, Frame(Kind.WELCOME))])
        if stream is not None:
            await self.receive_lane(end, stream, greeting.lane)
        elif asked is not None and not asked.done():
            asked.set_result(lane := Offer(end))
            await lane.hold()

    async def receive_lane(self, end: rpc.PeerContext | rpc.PeerCall, stream: Stream, number: int) -> None:
        """Takes the chunks that a peer sends on a further stream, until that stream or the link's first one ends."""
        lane = Lane(stream, end, number)
        stream.lanes.append(lane)
        try:
            await self._take_all(lane, lambda: stream.reading)
        finally:
            stream.lanes.remove(lane)

    async def _take_all(self, lane: Lane, wanted: Callable[[], bool]) -> None:
        """Takes the messages of a stream until it ends, breaks the protocol, or is not wanted any more."""
        refusal = ""
        try:
            while wanted() and not lane.stopped:
                message = await lane.end.read()
                if message is rpc.END:
                    break  # a killed sender's stream ends in this way too: incomplete messages are dropped
                await lane.take(message)
        except (FrameError, StreamRefused, ArenaFull, ValueError) as error:
            refusal = str(error)
        except asyncio.CancelledError:
            if not lane.stopped:
                raise
            refusal = lane.stopped
        lane.waits = False  # it ends already
        if refusal:
            self.traffic.dropped["stream ended here" if lane.stopped else "broken frame"] += 1
            await self._write(lane.end, [(OTHER, Frame(Kind.REFUSE, head=refusal.encode()))])

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
        """TAKE, or why the message is dropped. For a view that this node has not entered yet, waits until it has."""
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
        if self.secure and not rpc.is_peer(context, greeting.name):
            raise StreamRefused(f"says it is {greeting.name}, but its certificate says otherwise")
        if greeting.to != self.name:
            raise StreamRefused(f"wants {greeting.to}, but this is {self.name}")
        if greeting.to_session != self.session:
            raise StreamRefused(f"wants an earlier session of {self.name}, which has restarted")
        return greeting
