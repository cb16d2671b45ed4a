"""One stream between two nodes, whichever of them opens it: how a peer is reached, the greeting, and why a stream ends.

Usually each node dials the other and sends on the stream that it opened. A node that nobody can dial (behind NAT) opens
the streams of both directions, and two such nodes meet at the coordinator, which passes their bytes on unread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc.aio

from ...proto import PROTOCOL
from ...proto.connections import rpc
from ...proto.connections.patience import patience
from ...proto.control_pb2 import Member
from ...proto.data_pb2 import Greeting
from ...proto.messages import frame as frames
from ...proto.messages.frame import Frame, Kind
from ...proto.words.border import printable
from .traffic import OTHER, Traffic

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 3.0
PAUSE_GROWTH = 1.5
"""A lost peer is tried again after 0.2, 0.5, 1.0, 1.6, 2.6 ... seconds."""
GREETING_TIMEOUT = 30.0
"""Seconds that a peer on a near link has to accept the connection and answer the greeting."""

T = TypeVar("T")


class LinkBroken(Exception):
    """The stream of a link ended; the text says why."""


@dataclass
class Self:
    """This node's identity, as it greets its peers; ``credentials`` are renewed while the node lives.

    ``coordinator`` (HOST:PORT) is where two nodes that only dial out meet.
    """

    run: str
    name: str
    session: str
    credentials: rpc.Credentials
    dials_out: bool = False
    coordinator: str = ""
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    protocol: int = PROTOCOL
    round_trips: dict[str, float] = field(default_factory=dict)
    """Measured round-trip time to each peer in seconds; the coordinator's is under the empty name."""

    def round_trip(self, peer: str) -> float:
        """Round-trip time to a peer in seconds, at least that to the coordinator; 0: neither is known."""
        return max(self.round_trips.get(peer, 0.0), self.round_trips.get("", 0.0))

    def patience(self, peer: str) -> float:
        """Seconds for a connection to a peer and the answer to the greeting."""
        return patience(GREETING_TIMEOUT, self.round_trip(peer))

    def way_to(self, peer: Member) -> tuple[str, grpc.aio.Channel]:
        """(address that is dialled, channel): the peer itself, or the coordinator for a peer that can't be dialled."""
        if not peer.dials_out:
            trip = self.round_trip(peer.name)
            return peer.address, rpc.peer_channel(peer.address, peer.name, self.credentials, trip)
        if not self.coordinator:
            raise LinkBroken(f"neither {self.name} nor {peer.name} can be dialled, and no coordinator is there")
        trip = self.round_trip(peer.name)
        return self.coordinator, rpc.coordinator_channel(self.coordinator, self.credentials.pinned, trip)


@contextlib.asynccontextmanager
async def dialled(
    me: Self, peer: Member, traffic: Traffic, you_send: bool = False, lane: int = 0, link: int = 0
) -> AsyncIterator[rpc.PeerCall]:
    """Open a stream to the peer, send the greeting and read the answer; you_send, lane and link are fields of the
    greeting (data.proto).

    LinkBroken or rpc.BROKEN if the stream cannot be opened.
    """
    address, channel = me.way_to(peer)
    call = None
    try:
        # The metadata has the session's secret, which only the coordinator may see.
        call = rpc.peer_method(channel, me.metadata if peer.dials_out else ())
        try:
            greeted = _greet(call, me, peer, traffic, you_send=you_send, lane=lane, link=link)
            await within(me.patience(peer.name), greeted)
        except asyncio.TimeoutError:
            raise LinkBroken(f"no answer from {address} in {me.patience(peer.name):.0f} s") from None
        yield call
    finally:
        if call is not None:
            call.cancel()
        await channel.close(None)


async def within(seconds: float, work: Awaitable[T]) -> T:
    """As asyncio.wait_for, which before Python 3.12 loses a cancellation that comes just as the work ends: a link that
    was closed at that moment would go on."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels the tasks and waits until each has ended, with or without an error."""
    while not all(task.done() for task in tasks):
        for task in tasks:
            task.cancel()  # repeated, because gRPC may turn a cancellation into another exception
        await asyncio.wait(tasks, timeout=0.1)
    await asyncio.gather(*tasks, return_exceptions=True)


async def read_frames(stream: rpc.PeerCall | rpc.PeerContext, peer: str) -> list[Frame]:
    """The frames of one message. LinkBroken at the end of the stream, or with the peer's refusal."""
    message = await stream.read()
    if message is rpc.END:
        await raise_status(stream)
    answer = frames.decode(message)
    for frame in answer:
        if frame.kind is Kind.REFUSE:
            raise LinkBroken(f"{peer} refused the stream: {bytes(frame.head).decode('utf-8', 'replace')}")
    return answer


async def raise_status(stream: rpc.PeerCall | rpc.PeerContext) -> None:
    """Raises LinkBroken with the reason in the stream's status; a stream that the peer opened has no status."""
    if not isinstance(stream, grpc.aio.Call):
        raise LinkBroken("the peer ended the stream that it had opened")
    code = await stream.code()
    if code is grpc.StatusCode.OK:
        raise LinkBroken("the peer ended the stream")
    details = (await stream.details() or "").strip().rstrip("]").split(": ")[-1]
    raise LinkBroken(printable(details) or code.name)


async def _greet(
    call: rpc.PeerCall, me: Self, peer: Member, traffic: Traffic, *, you_send: bool, lane: int, link: int
) -> None:
    greeting = Greeting(
        protocol=me.protocol,
        run=me.run,
        name=me.name,
        session=me.session,
        to=peer.name,
        to_session=peer.session,
        you_send=you_send,
        lane=lane,
        link=link,
    )
    hello = b"".join(frames.encode(Frame(Kind.HELLO, head=greeting.SerializeToString())))
    traffic.wrote([(OTHER, len(hello))])
    try:
        await call.write(hello)
    except rpc.BROKEN:
        await raise_status(call)
    answer = await read_frames(call, peer.name)
    if not answer or answer[0].kind is not Kind.WELCOME:
        raise LinkBroken("the answer to the greeting is not one")
