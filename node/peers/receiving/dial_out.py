"""Streams that the receiver opens because the sender cannot dial it: the side of the node that dials out.

This node keeps such a stream open to each peer. The peer holds it in its `Offers` (offers.py) until its link takes it
and sends on it as on a stream that the link dialled. For bulk the link asks, on that stream, for further lanes, which
this node opens too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from ....proto.connections import rpc
from ....proto.control_pb2 import Member
from ....proto.messages.frame import FrameError
from ..greeting import FIRST_PAUSE, LONGEST_PAUSE, PAUSE_GROWTH, LinkBroken, Self, dialled, end_all
from ..traffic import Traffic
from .reassembly import Stream
from .server import Inbound

log = logging.getLogger("farflung.io")


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
        """Keep the stream open. A break is not reported here: the peer's link sees it too and reports it."""
        pause = FIRST_PAUSE
        while True:
            # Between two nodes that dial out, the coordinator relays one stream in each direction, and no lanes.
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
                lane.result()  # raises any other error than a broken connection: it is a bug
            if self._closed:  # as in PeerLink: gRPC may turn the cancellation into another exception
                return
            log.info("the stream on which %s sends ended: %s", self._peer.name, why)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)

    def _open_lane(self, stream: Stream, number: int) -> None:
        self._lanes.append(asyncio.create_task(self._lane(stream, number)))

    async def _lane(self, stream: Stream, number: int) -> None:
        """Open one bulk connection, trying until it opens; meanwhile the peer sends on the others. When an open one
        breaks, the whole link ends."""
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
