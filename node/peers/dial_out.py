"""Streams that the receiver opens, because its peer cannot dial it: both ends of them.

The node that only dials out keeps such a stream open to each peer (`Receiving`). The peer's `Offers` holds it until the
peer's link takes it, and then it is like a stream that the link had dialled. For bulk the link asks on it for further
lanes, which the same node opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING

from ...proto import rpc
from ...proto.control_pb2 import Member
from ...proto.frame import FrameError
from .greeting import FIRST_PAUSE, LONGEST_PAUSE, PAUSE_GROWTH, LinkBroken, Self, dialled, end_all, within
from .traffic import Traffic

if TYPE_CHECKING:
    from .receiving.reassembly import Stream
    from .receiving.server import Inbound

log = logging.getLogger("farflung.io")


class Offer:
    """A stream on which this node may send. Whoever sets ``ended`` ends it.

    ``link``: of the peer's greeting; not 0 where the peer opens lanes that it is asked for.
    """

    def __init__(self, context: rpc.PeerContext, link: int = 0) -> None:
        self.context, self.link = context, link
        self.taken = False
        self.ended = asyncio.Event()
        self.lanes: dict[int, asyncio.Future[Offer]] = {}
        """Those that the peer was asked for, by number."""

    @property
    def callers(self) -> set[tuple[str, int]]:
        """Where its connection and those of its lanes come from."""
        here = [lane.result() for lane in self.lanes.values() if lane.done() and not lane.cancelled()]
        return {rpc.caller(one.context) for one in (self, *here)}

    async def lane(self, number: int) -> Offer:
        """The lane of that number, once the peer has opened it."""
        self.lanes[number] = asyncio.get_running_loop().create_future()
        return await self.lanes[number]

    async def hold(self) -> None:
        """Keeps the stream open until it ends."""
        try:
            await self.ended.wait()
        finally:
            self.ended.set()  # also when the peer is gone, which cancels this


class Offers:
    """The newest offer of each session of a peer, taken by a link or not yet."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Offer] = {}
        self._changed = asyncio.Event()

    async def serve(self, context: rpc.PeerContext, name: str, session: str, link: int = 0) -> None:
        """Keeps a greeted stream of that peer open until it ends; an earlier one of the peer is given up."""
        key, offer = (name, session), Offer(context, link)
        if (old := self._newest.get(key)) is not None:
            old.ended.set()
        self._newest[key] = offer
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            await offer.hold()
        finally:
            if self._newest.get(key) is offer:
                del self._newest[key]

    def asked_for(self, name: str, session: str, link: int, number: int) -> asyncio.Future[Offer] | None:
        """What waits for that lane; None where nothing does."""
        offer = self._newest.get((name, session))
        asked = offer.lanes.get(number) if offer is not None and offer.link == link else None
        return asked if asked is not None and not asked.done() else None

    async def take(self, name: str, session: str, patience: float) -> Offer:
        """The stream that this session of a peer offers. LinkBroken when none has come within `patience` seconds."""
        deadline = time.monotonic() + patience
        while (offer := self._newest.get((name, session))) is None or offer.taken or offer.ended.is_set():
            try:
                await within(max(0.0, deadline - time.monotonic()), self._changed.wait())
            except asyncio.TimeoutError:
                raise LinkBroken(f"{name} can't be dialled and has not dialled for {patience:.0f} s") from None
        offer.taken = True
        return offer


class Receiving:
    """Keeps a stream open on which one peer sends to this node, with the lanes that it asks for."""

    def __init__(self, me: Self, peer: Member, traffic: Traffic, inbound: Inbound) -> None:
        self._me, self._peer, self._traffic, self._inbound = me, peer, traffic, inbound
        self._closed = False
        self._lanes: list[asyncio.Task[None]] = []
        self.task = asyncio.create_task(self._keep(), name=f"receiving from {peer.name}")

    async def close(self) -> None:
        self._closed = True
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def _keep(self) -> None:
        """Nobody is told of a break here: the peer's link sees the same one and says so."""
        pause = FIRST_PAUSE
        while True:
            # The coordinator, where two that dial out meet, passes on one stream of each direction.
            link = 0 if self._peer.dials_out else random.randrange(1, 1 << 64)
            try:
                async with dialled(self._me, self._peer, self._traffic, you_send=True, link=link) as call:
                    pause = FIRST_PAUSE
                    await self._inbound.receive(call, self._peer.name, self._peer.session, link, self._open_lane)
                why = "the peer ended it"
            except (LinkBroken, FrameError) as error:
                why = str(error)
            except rpc.BROKEN as error:
                why = rpc.why_broken(error)
            finally:
                lanes, self._lanes = self._lanes, []
                over = [lane for lane in lanes if lane.done()]
                await end_all(lanes)
            for lane in over:
                lane.result()  # whatever else than a broken connection has ended one is a fault of this program
            if self._closed:  # as in PeerLink: the cancellation may have become another end
                return
            log.info("the stream on which %s sends ended: %s", self._peer.name, why)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)

    def _open_lane(self, stream: Stream, number: int) -> None:
        self._lanes.append(asyncio.create_task(self._lane(stream, number)))

    async def _lane(self, stream: Stream, number: int) -> None:
        """One connection for bulk. While it can't be had the peer does without; once it is there, its end is the
        link's."""
        pause, opened = FIRST_PAUSE, False
        while not opened:
            try:
                async with dialled(self._me, self._peer, self._traffic, True, number, stream.link) as call:
                    opened = True
                    await self._inbound.receive_lane(call, stream, number)
                why = "the peer ended it"
            except (LinkBroken, FrameError, *rpc.BROKEN) as error:
                why = rpc.why_broken(error)
            log.info("bulk connection %d from %s: %s", number, self._peer.name, why)
            if not opened:
                await asyncio.sleep(pause)
                pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)
        if stream.reading:
            stream.stop("a bulk connection of this link has ended")
