"""Streams that the receiver opens, because its peer cannot dial it: both ends of them.

The node that only dials out keeps such a stream open to each peer (`Receiving`). The peer's `Offers` holds it until the
peer's link takes it, and then it is like a stream that the link had dialled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

from ..proto import rpc
from ..proto.control_pb2 import Member
from ..proto.frame import FrameError
from .peer_stream import FIRST_PAUSE, LONGEST_PAUSE, PAUSE_GROWTH, LinkBroken, Self, dialled
from .traffic import Traffic

log = logging.getLogger("farflung.io")


class Offer:
    """A stream on which this node may send. Whoever sets ``ended`` ends it."""

    def __init__(self, context: rpc.PeerContext) -> None:
        self.context = context
        self.taken = False
        self.ended = asyncio.Event()


class Offers:
    """The newest offer of each session of a peer, taken by a link or not yet."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Offer] = {}
        self._changed = asyncio.Event()

    async def serve(self, context: rpc.PeerContext, name: str, session: str) -> None:
        """Keeps a greeted stream of that peer open until it ends; an earlier one of the peer is given up."""
        key, offer = (name, session), Offer(context)
        if (old := self._newest.get(key)) is not None:
            old.ended.set()
        self._newest[key] = offer
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            await offer.ended.wait()
        finally:
            offer.ended.set()  # also when the peer is gone, which cancels this
            if self._newest.get(key) is offer:
                del self._newest[key]

    async def take(self, name: str, session: str, patience: float) -> Offer:
        """The stream that this session of a peer offers. LinkBroken when none has come within `patience` seconds."""
        deadline = time.monotonic() + patience
        while (offer := self._newest.get((name, session))) is None or offer.taken or offer.ended.is_set():
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                raise LinkBroken(f"{name} can't be dialled and has not dialled for {patience:.0f} s") from None
        offer.taken = True
        return offer


class Receiving:
    """Keeps a stream open on which one peer sends to this node. ``receive(stream, peer)`` takes what comes on it."""

    def __init__(
        self, me: Self, peer: Member, traffic: Traffic, receive: Callable[[rpc.PeerCall, Member], Awaitable[None]]
    ) -> None:
        self._me, self._peer, self._traffic, self._receive = me, peer, traffic, receive
        self._closed = False
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
            try:
                async with dialled(self._me, self._peer, self._traffic, you_send=True) as call:
                    pause = FIRST_PAUSE
                    await self._receive(call, self._peer)
                why = "the peer ended it"
            except (LinkBroken, FrameError) as error:
                why = str(error)
            except rpc.BROKEN as error:
                why = rpc.why_broken(error)
            if self._closed:  # as in PeerLink: the cancellation may have become another end
                return
            log.info("the stream on which %s sends ended: %s", self._peer.name, why)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(PAUSE_GROWTH * pause, LONGEST_PAUSE)
