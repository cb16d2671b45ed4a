"""The sending end: one link to each other member of the view, each with connections and a queue of its own.

A link has one connection, and from its first large message on a second one for bulk, so that urgent messages never wait
behind a full socket buffer; lanes.py may add more for bulk. All of them end together. If neither node can dial the
other, all messages go on one stream, which the coordinator relays.

A link keeps its connection open for as long as it lives (a new connection costs several round trips), and connects
again, with growing pauses, when it breaks. It sends messages that the peer had not acknowledged again on the new
stream. To a peer that cannot be dialled, the link sends on streams that the peer opens (offers.py); it asks the peer
for those for bulk.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable
from typing import Any

from ....proto.connections import rpc
from ....proto.control_pb2 import Member
from ....proto.data_pb2 import Header
from ....proto.messages import frame as frames
from ....proto.messages.frame import FrameError, Kind
from ..greeting import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    PAUSE_GROWTH,
    LinkBroken,
    Self,
    dialled,
    raise_status,
    read_frames,
)
from ..header_compression import Shortener
from ..offers import Offers
from ..receiving.dial_out import Receiving
from ..tcp_info import TcpFigures
from ..traffic import Traffic
from .bulk import Bulk, Stream
from .send_queue import Carries, Outgoing, SendQueue

TELL_AGAIN_SECONDS = 10.0
"""A link that stays down is reported again after so many seconds, because the report may have been lost."""
OTHERS = {Carries.ALL: Carries.NONE, Carries.HEADS: Carries.CHUNKS, Carries.CHUNKS: Carries.HEADS}


class PeerLink:
    """Sends all messages from this node to one peer. Belongs to the event loop that made it.

    ``receiving``: the stream of the other direction, if this node has to open that too; it ends with the link.
    """

    def __init__(
        self,
        me: Self,
        peer: Member,
        traffic: Traffic,
        *,
        on_lost: Callable[[PeerLink, str], None],
        on_back: Callable[[PeerLink], None],
        offers: Offers,
        receiving: Receiving | None = None,
    ) -> None:
        self.peer = peer
        self.queue = SendQueue()
        self.connected = asyncio.Event()
        self.wants_bulk = asyncio.Event()
        self.bulk_open = asyncio.Event()
        """Set when large messages have a connection of their own, or when the peer cannot have one."""
        self.lanes = 1
        """Number of bulk connections, open now or with the next large message."""
        self.chunk = rpc.CHUNK
        """Bytes of one write, at most."""
        self.closed = False
        self._me, self._traffic, self._on_lost, self._on_back = me, traffic, on_lost, on_back
        self._offers, self._receiving = offers, receiving
        self._wake = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._lost = False
        self._told = -math.inf
        self._bulk: Bulk | None = None
        self.task = asyncio.create_task(self._keep(), name=f"link to {peer.name}")

    def send(self, message: Outgoing) -> None:
        self.queue.put(message)
        self._wake.set()
        if message.bulk:
            self.wants_bulk.set()

    def tell_again(self) -> None:
        """A new view has begun: if the peer is lost, the next failure is reported once more."""
        self._lost = False

    def drop(self, unwanted: Callable[[Header], bool]) -> int:
        """Drops messages, sent or not; returns how many. Those that the peer has in part are cancelled there."""
        dropped = self.queue.drop(unwanted)
        self._wake.set()
        return dropped

    @property
    def figures(self) -> TcpFigures:
        """The kernel's figures of the link's connections; zeros before the first large message, or if the coordinator
        relays the link."""
        return self._bulk.figures if self._bulk is not None else TcpFigures()

    async def drained(self, deadline: float) -> None:
        """Waits until the peer has acknowledged all messages or is lost, at most until `deadline` (monotonic)."""
        while self.queue.unfinished and self.connected.is_set() and (left := deadline - time.monotonic()) > 0:
            self._acknowledged.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._acknowledged.wait(), min(left, 0.1))

    async def close(self) -> None:
        """Ends the connection; queued messages are released."""
        self.closed = True
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        if self._receiving is not None:
            await self._receiving.close()
        self.queue.drop(lambda _: True)

    # ---- the connection --------------------------------------------------------------------

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._talk()
                why = "the stream ended"
            except (LinkBroken, FrameError) as error:
                why = str(error)
            except rpc.BROKEN as error:
                why = rpc.why_broken(error)
            if self.closed:  # gRPC may turn the cancellation into another exception
                return
            if self.connected.is_set():
                self.connected.clear()
                pause = FIRST_PAUSE
            self.queue.rewind()
            if not self._lost or time.monotonic() - self._told > TELL_AGAIN_SECONDS:
                self._lost, self._told = True, time.monotonic()
                self._on_lost(self, why)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)

    async def _talk(self) -> None:
        """One connection from the greeting until it breaks. Raises the error that broke it."""
        if self.peer.dials_out and not self._me.dials_out:
            offer = await self._offers.take(self.peer.name, self.peer.session, self._me.patience(self.peer.name))
            try:
                bulk = Bulk(self, self._me, self._traffic, offer) if offer.link else None
                await self._both_ways(offer.context, offer.ended, bulk)
            finally:
                offer.ended.set()
        else:
            bulk = None if self.peer.dials_out else Bulk(self, self._me, self._traffic)
            number = bulk.number if bulk is not None else 0
            async with dialled(self._me, self.peer, self._traffic, link=number) as call:
                await self._both_ways(call, asyncio.Event(), bulk)

    async def _both_ways(self, stream: Stream, ended: asyncio.Event, bulk: Bulk | None) -> None:
        if self._lost:
            self._lost = False
            self._on_back(self)
        self.connected.set()
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(ended.wait())]
        self._bulk = bulk
        if bulk is not None:
            tasks.append(asyncio.create_task(bulk.keep()))
        else:
            self.bulk_open.set()
        try:
            await self._run(stream, lambda: bulk.first_carries if bulk is not None else Carries.ALL, tasks)
        finally:
            self._bulk = None
            self.bulk_open.clear()
            if bulk is not None:
                bulk.close()

    def ask_for_lane(self, number: int) -> None:
        """Ask the peer, which opens the streams of this link, to open lane ``number``."""
        self.queue.ask_for_lane(number)
        self._wake.set()

    async def carry(self, stream: Stream, ended: asyncio.Event) -> None:
        """Writes chunks on a bulk stream until it breaks. Raises the error that broke it."""
        await self._run(stream, lambda: Carries.CHUNKS, [asyncio.create_task(ended.wait())])
        raise LinkBroken("a bulk connection ended")

    async def _run(self, stream: Stream, carries: Callable[[], Carries], tasks: list[asyncio.Task[Any]]) -> None:
        # Reading gives the stream's status; a failed write only says "internal error".
        tasks = [
            asyncio.create_task(self._read_all(stream)),
            asyncio.create_task(self._write_all(stream, carries)),
            *tasks,
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failed = next(task for task in tasks if task in done)
            if failed.cancelled():
                raise LinkBroken("the stream was cancelled")
            await failed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_all(self, stream: Stream, carries: Callable[[], Carries]) -> None:
        """One write at a time, so that an urgent message waits for at most one chunk here."""
        shortener = Shortener()
        while True:
            while self.queue.waiting(carries()):
                await self._traffic.uplink.ready()
                share = carries()
                parts = self.queue.next_write(shortener, min(self._traffic.uplink.write, self.chunk), share)
                if self.queue.waiting(OTHERS[share]):  # more waits for another of this link's streams
                    self._wake.set()
                message = b"".join(buffer for _, buffers in parts for buffer in buffers)
                sizes = [(category, frames.size(buffers)) for category, buffers in parts]
                self._traffic.wrote(sizes, self.peer.name)
                try:
                    await stream.write(message)
                except rpc.BROKEN:
                    await raise_status(stream)
            self._wake.clear()
            await self._wake.wait()

    async def _read_all(self, stream: Stream) -> None:
        while True:
            for frame in await read_frames(stream, self.peer.name):
                if frame.kind is not Kind.ACK:
                    raise LinkBroken(f"unexpected frame {frame.kind.name}")
                self.queue.acknowledge(frame.priority, frame.transfer)
            self._acknowledged.set()
