"""The connections of a link that carry only chunks of large messages: opened with the first such message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import AsyncIterator
from typing import Protocol

from ....proto.connections import rpc
from ....proto.control_pb2 import Member
from ....proto.messages.frame import FrameError
from ....proto.words.link import split_address
from ..greeting import FIRST_PAUSE, LONGEST_PAUSE, PAUSE_GROWTH, LinkBroken, Self, dialled, end_all
from ..lanes import LEAST_BUSY, ahead, lanes_wanted
from ..offers import Offer
from ..tcp_info import TcpFigures, connected_to, figures, keep_unsent_short
from ..traffic import Traffic
from .send_queue import Carries

log = logging.getLogger("farflung.io")

LOOK_SECONDS = 0.5
"""Seconds between two readings of the kernel's figures while bulk is sent."""


Stream = rpc.PeerCall | rpc.PeerContext
"""The client's or the server's end of a stream: both have read() and write()."""


class WithBulk(Protocol):
    """The link that bulk connections belong to (link.py)."""

    peer: Member
    lanes: int
    chunk: int
    wants_bulk: asyncio.Event
    bulk_open: asyncio.Event

    def ask_for_lane(self, number: int) -> None: ...
    async def carry(self, stream: Stream, ended: asyncio.Event) -> None: ...


class Bulk:
    """The bulk connections beside the first stream of a link; they end with it. ``offer``: the first stream if the peer
    opened it; then the peer opens the bulk connections too."""

    def __init__(self, link: WithBulk, me: Self, traffic: Traffic, offer: Offer | None = None) -> None:
        self._link, self._me, self._traffic, self._offer = link, me, traffic, offer
        self._streams = 0
        self._sockets: list[socket.socket] = []
        self._before = TcpFigures()
        self._carried: dict[int, float] = {}  # number of connections -> highest bytes per second
        self._over = False
        self.number = random.getrandbits(64)
        """The link's number in greetings, by which the peer knows which streams belong together."""

    @property
    def first_carries(self) -> Carries:
        """What the first stream carries: everything, or all but bulk once a bulk connection is open."""
        return Carries.HEADS if self._streams else Carries.ALL

    @property
    def figures(self) -> TcpFigures:
        """The kernel's totals over all connections of the link since they began."""
        return figures(self._sockets)

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()

    async def keep(self) -> None:
        """Opens the wanted number of connections, and decides from time to time whether to open more. Raises the error
        that broke one of them."""
        await self._link.wants_bulk.wait()
        lanes: list[asyncio.Task[None]] = []
        try:
            while True:
                while len(lanes) < self._link.lanes:
                    lanes.append(asyncio.create_task(self._lane(len(lanes) + 1)))
                done, _ = await asyncio.wait(lanes, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for lane in done:
                    await lane
                if self._streams == len(lanes):
                    self._look(len(lanes))
        finally:
            self._over = True
            await end_all(lanes)

    async def _lane(self, number: int) -> None:
        """Open one connection, trying until it opens; meanwhile the link uses the others. When an open one breaks, the
        whole link ends."""
        pause = FIRST_PAUSE
        while True:
            opened = False
            try:
                async with self._stream(number) as (stream, ended):
                    opened = True
                    self._streams += 1
                    self._link.bulk_open.set()
                    await self._find_sockets()
                    await self._link.carry(stream, ended)
            except (LinkBroken, FrameError, *rpc.BROKEN) as error:
                if opened or self._over:  # gRPC may turn a cancellation into this
                    raise
                log.info("no bulk connection to %s: %s", self._link.peer.name, rpc.why_broken(error))
            finally:
                self._streams -= opened
            await asyncio.sleep(pause)
            pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)

    @contextlib.asynccontextmanager
    async def _stream(self, number: int) -> AsyncIterator[tuple[Stream, asyncio.Event]]:
        """A stream of this link, and an event that may tell of its end before a read does."""
        if self._offer is None:
            async with dialled(self._me, self._link.peer, self._traffic, lane=number, link=self.number) as call:
                yield call, asyncio.Event()
            return
        self._link.ask_for_lane(number)
        lane = await self._offer.lane(number)
        try:
            yield lane.context, lane.ended
        finally:
            lane.ended.set()

    async def _addresses(self) -> set[tuple[str, int]]:
        """Remote addresses of its connections; none where the peer's host name no longer resolves."""
        if self._offer is not None:
            return self._offer.callers
        host, port = split_address(self._link.peer.address)
        try:
            known = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return set()
        return {(str(address[0]), int(address[1])) for *_, address in known}

    async def _find_sockets(self) -> None:
        addresses = await self._addresses()
        if not addresses:
            return
        self.close()
        self._sockets = connected_to(addresses)
        self._before = figures(self._sockets)
        self._adapt(0.0)

    def _look(self, lanes: int) -> None:
        now = figures(self._sockets)
        seen = now.since(self._before)
        if seen.busy_s < LEAST_BUSY:
            return  # the figures add up until there are enough to judge
        self._before = now
        self._adapt(seen.rate_bps)
        carried = (seen.sent - seen.resent) / max(seen.longest_busy_s, 1e-3)
        self._carried[lanes] = max(self._carried.get(lanes, 0.0), carried)
        gained = self._carried[lanes] / max(self._carried.get(lanes - 1, 0.0), 1.0)
        self._link.lanes, why = lanes_wanted(lanes, seen, gained)
        if why:
            log.info("%d bulk connections to %s: %s", self._link.lanes, self._link.peer.name, why)

    def _adapt(self, rate: float) -> None:
        self._link.chunk, unsent = ahead(rate / max(self._streams, 1))
        for one in self._sockets:
            keep_unsent_short(one, unsent)
