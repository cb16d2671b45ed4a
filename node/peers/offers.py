"""Streams that the receiver opened, because it cannot be dialled: held until a link takes them (see dial_out.py)."""

from __future__ import annotations

import asyncio
import time

from ...proto.connections import rpc
from ...proto.connections.sockets import end_of
from .greeting import LinkBroken, within


class Offer:
    """A stream that the peer opened and on which this node may send. It ends when ``ended`` is set.

    ``link``: the link number of the peer's greeting; 0 if the peer does not open lanes when asked.
    """

    def __init__(self, context: rpc.PeerContext, link: int = 0) -> None:
        self.context, self.link = context, link
        self.taken = False
        self.ended = asyncio.Event()
        self.lanes: dict[int, asyncio.Future[Offer]] = {}
        """The lanes that the peer was asked to open, by number."""

    @property
    def callers(self) -> set[tuple[str, int]]:
        """Remote addresses of this connection and of its lanes."""
        here = [lane.result() for lane in self.lanes.values() if lane.done() and not lane.cancelled()]
        ends = (end_of(one.context.peer()) for one in (self, *here))
        return {end for end in ends if end is not None}

    async def lane(self, number: int) -> Offer:
        """Wait until the peer has opened lane ``number``, and return it."""
        self.lanes[number] = asyncio.get_running_loop().create_future()
        return await self.lanes[number]

    async def hold(self) -> None:
        """Keeps the stream open until it ends."""
        try:
            await self.ended.wait()
        finally:
            self.ended.set()  # also if this task is cancelled because the peer is gone


class Offers:
    """The newest offer of each session of each peer, whether a link has taken it or not."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Offer] = {}
        self._changed = asyncio.Event()

    async def serve(self, context: rpc.PeerContext, name: str, session: str, link: int = 0) -> None:
        """Keeps a greeted stream of a peer open until it ends; an earlier stream of the same session is ended."""
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
        """The future that waits for lane ``number``; None if none was asked for."""
        offer = self._newest.get((name, session))
        asked = offer.lanes.get(number) if offer is not None and offer.link == link else None
        return asked if asked is not None and not asked.done() else None

    async def take(self, name: str, session: str, patience: float) -> Offer:
        """The stream that this session of a peer offers. LinkBroken if none comes within `patience` seconds."""
        deadline = time.monotonic() + patience
        while (offer := self._newest.get((name, session))) is None or offer.taken or offer.ended.is_set():
            try:
                await within(max(0.0, deadline - time.monotonic()), self._changed.wait())
            except asyncio.TimeoutError:
                raise LinkBroken(f"{name} can't be dialled and has not dialled for {patience:.0f} s") from None
        offer.taken = True
        return offer
