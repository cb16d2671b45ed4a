"""Measures the links from this node to others: latency by small messages, bandwidth by a short burst.

A probe is an ordinary message of kind PROBE that its receiver throws away and acknowledges; it needs no view.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from ...proto.control_pb2 import LinkMeasurement
from ...proto.data_pb2 import Header, Kind
from ..peers.sending.link import PeerLink
from ..peers.sending.send_queue import Outgoing
from .burst import LONGEST_S, MESSAGE, Burst

PINGS = 5
NEAR = 1e-3
"""Seconds of one-way latency below which a quarter of the burst is enough: TCP's window is large enough at once."""
OPENING_TRIPS, OPENING_S = 8, 0.5
"""A connection for large messages may take so many round trips plus so many seconds to open before the burst."""


async def measure(
    link: PeerLink, me: str, next_transfer: Callable[[], int], limit: int, patience: float
) -> LinkMeasurement:
    """One link: half the shortest of PINGS round trips, and the rate of a burst (burst.py) once it has stopped growing.

    `limit`: bytes of a burst whose rate does not grow, a quarter of them on a near link. Messages that arrive up to
    `patience` seconds after the end of the burst count. A link that carried nothing, or did not connect within
    `patience` seconds, has bandwidth 0.
    """
    result = LinkMeasurement(to=link.peer.name)
    setattr(result, "from", me)  # a keyword in Python
    trips = []
    try:
        await asyncio.wait_for(link.connected.wait(), patience)
        for _ in range(PINGS):
            begin = time.monotonic()
            trips.append(await asyncio.wait_for(_probe(link, next_transfer(), _header(), b""), patience) - begin)
    except asyncio.TimeoutError:
        if not trips:
            return result
    result.latency_s = min(trips) / 2
    limit = limit // 4 if result.latency_s < NEAR else limit
    await _open(link, min(trips))
    result.bandwidth_bps = await _burst(link, next_transfer, min(trips), limit, patience)
    return result


async def _open(link: PeerLink, trip: float) -> None:
    """Opens the connection for large messages before the burst: opened in the middle, it would start slowly again."""
    link.wants_bulk.set()
    with contextlib.suppress(asyncio.TimeoutError):  # then the burst uses the connections that are open
        await asyncio.wait_for(link.bulk_open.wait(), OPENING_S + OPENING_TRIPS * trip)


async def _burst(link: PeerLink, next_transfer: Callable[[], int], trip: float, limit: int, patience: float) -> float:
    header, payload = _header(), bytes(MESSAGE)
    now = time.monotonic()
    burst, pending = Burst(now, trip, patience, limit), set[asyncio.Future[float]]()
    until = now + LONGEST_S + patience
    while True:
        while burst.may_send(now):
            pending.add(_probe(link, next_transfer(), header, payload))
            burst.sent += 1
        if not pending:
            return burst.bandwidth()
        if not burst.over(now):
            until = max(until, now + patience)
        done, pending = await asyncio.wait(pending, timeout=max(until - now, 0.0), return_when=asyncio.FIRST_COMPLETED)
        if not done:
            link.drop(lambda waiting: waiting is header)
            return burst.bandwidth()
        burst.acknowledge(max(future.result() for future in done), len(done))
        now = time.monotonic()


def _header() -> Header:
    return Header(kind=Kind.PROBE)


def _probe(link: PeerLink, transfer: int, header: Header, payload: bytes) -> asyncio.Future[float]:
    """Sends a probe; the future has the time at which it was acknowledged."""
    acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def release() -> None:
        if not acknowledged.done():
            acknowledged.set_result(time.monotonic())

    priority = 2 if payload else 0
    link.send(Outgoing(transfer, priority, header, memoryview(payload), release))
    return acknowledged
