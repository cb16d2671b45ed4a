"""The links to the other members of a view: which ones exist, sending on them, and their measurements."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Set
from dataclasses import dataclass
from typing import Any

from ...proto import control_pb2 as control
from ...proto.data_pb2 import Header
from ..peers.greeting import Self
from ..peers.receiving.admission import Membership
from ..peers.receiving.dial_out import Receiving
from ..peers.receiving.server import Inbound
from ..peers.sending.link import PeerLink
from ..peers.sending.send_queue import Outgoing
from ..peers.traffic import Traffic
from .link_probe import measure

log = logging.getLogger("farflung.io")

BURST_BYTES = 16 << 20


@dataclass(frozen=True)
class Tells:
    """Callbacks of a node's links."""

    lost: Callable[[str, str], None]
    """``lost(peer, why)``: to the trainer."""
    report: Callable[[control.Report], None]
    """Sends a report to the coordinator, if there is one."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Starts a background task."""
    finished: Callable[[asyncio.Task[Any]], None]
    """Called when a task of a link has ended."""


class PeerLinks:
    """The links of one node. A link stays open across views, as long as this node exchanges something with its peer."""

    def __init__(self, me: Self, membership: Membership, inbound: Inbound, traffic: Traffic, tells: Tells) -> None:
        self._me, self._membership, self._inbound, self._traffic, self._tells = me, membership, inbound, traffic, tells
        self._links: dict[str, PeerLink] = {}
        self._needed: Set[str] = frozenset()
        """Peers with whom this node exchanges something in this view."""
        self._transfer = 0
        self._fastest = 0.0

    # ---- views -----------------------------------------------------------------------------

    def enter(self, view: int, needed: Iterable[str] | None) -> None:
        """A view begins. ``needed``: the peers that this node exchanges anything with; None: all members. A message to
        any other member opens a connection when it is sent; if that member cannot be dialled, the trainer is told
        that it is lost."""
        peers = self._membership.peers()
        self._needed = peers.keys() if needed is None else peers.keys() & set(needed)
        wanted = {name: peer for name, peer in peers.items() if name in self._needed}
        for name in self._links.keys() - wanted.keys():
            self._tells.spawn(self._links.pop(name).close())
        for peer in wanted.values():
            link = self._link(peer)
            link.drop(lambda header: header.view not in (0, view))
            link.tell_again()

    def leave(self) -> None:
        """A view ends. Its queued messages are dropped; the links stay open, as most peers will be in the next view."""
        for link in self._links.values():
            link.drop(lambda header: header.view != 0)

    async def drained(self, deadline: float) -> None:
        """Waits until all messages are acknowledged, at most until ``deadline`` (``time.monotonic``)."""
        for link in self._links.values():
            await link.drained(deadline)

    async def close(self) -> None:
        """Ends all links; what is queued is released."""
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()

    # ---- messages --------------------------------------------------------------------------

    def send(self, to: str, priority: int, header: Header, payload: memoryview, release: Callable[[], None]) -> bool:
        """Send to a member of this view. False: ``to`` is no member, or the message is of another view. ``release`` is
        called when the payload's memory is not needed any more."""
        peer = self._membership.peers().get(to)
        if peer is None or header.view != self._membership.view:
            self._traffic.dropped["sent outside the view"] += 1
            return False
        self._link(peer).send(Outgoing(self._next_transfer(), priority, header, payload, release))
        return True

    @property
    def urgent_waiting(self) -> bool:
        """Whether a message waits that is more urgent than a checkpoint."""
        return any(link.queue.urgent(2) for link in self._links.values())

    def _next_transfer(self) -> int:
        self._transfer += 1
        return self._transfer

    def _link(self, peer: control.Member) -> PeerLink:
        """The one link to this session of a peer; a second stream would supersede the first at the other end."""
        link = self._links.get(peer.name)
        if link is not None and link.peer == peer:
            return link
        if link is not None:
            self._tells.spawn(link.close())
        receiving = None
        if self._me.dials_out:
            receiving = Receiving(self._me, peer, self._traffic, self._inbound)
            receiving.task.add_done_callback(self._tells.finished)
        link = PeerLink(
            self._me,
            peer,
            self._traffic,
            on_lost=self._lost,
            on_back=self._back,
            offers=self._inbound.offers,
            receiving=receiving,
        )
        link.task.add_done_callback(self._tells.finished)
        self._links[peer.name] = link
        return link

    def _lost(self, link: PeerLink, why: str) -> None:
        if self._membership.members.get(link.peer.name) != link.peer:
            return  # the link was opened only to be measured
        log.info("lost %s: %s", link.peer.name, why)
        if self._membership.view:
            self._tells.lost(link.peer.name, why)
        if link.peer.name in self._needed:
            self._tells.report(control.Report(evidence=control.Evidence(peer=link.peer.name, why=why)))

    def _back(self, link: PeerLink) -> None:
        """A lost connection is open again: report it. The link sends unacknowledged messages again, so none is lost."""
        if link.peer.name in self._needed:
            self._tells.report(control.Report(evidence=control.Evidence(peer=link.peer.name, mended=True)))

    # ---- what is known of them -------------------------------------------------------------

    async def measure(self, peers: Iterable[control.Member], patience: float) -> control.Links:
        """Latency and bandwidth of the link to each of ``peers``. ``patience``: seconds a link may take to connect."""
        links = control.Links()
        # Open all connections first: a peer that dials out measures its links to this node at the same time.
        for link in [self._link(peer) for peer in peers if peer.name != self._me.name]:
            measured = await measure(link, self._me.name, self._next_transfer, BURST_BYTES, patience)
            if not link.closed:
                links.links.append(measured)
                self._me.round_trips[link.peer.name] = 2 * measured.latency_s
                self._fastest = max(self._fastest, measured.bandwidth_bps)
        return links

    def uplink(self, limit: float) -> float:
        """The highest bandwidth that a link has reached, in bits per second, at most ``limit`` (0: no limit); ``limit``
        itself if no link has been measured."""
        return min(self._fastest, limit) if limit and self._fastest else self._fastest or limit

    def watch(self) -> None:
        """Measure the links by the training's own traffic; reports of steps carry the figures."""
        figures = {name: link.figures for name, link in self._links.items()}
        self._traffic.watch.tick(time.monotonic(), figures, self._traffic.arrived)
