"""Measures the links from this node to others: latency by small messages, bandwidth by a short burst.

A probe is an ordinary message of kind PROBE that its receiver throws away and acknowledges; it needs no view.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from ...proto.control_pb2 import LinkMeasurement
from ...proto.data_pb2 import Header, Kind
from ..peers.sending.link import PeerLink
from ..peers.sending.send_queue import Outgoing

PINGS = 5
BURST_MESSAGE = 64 << 10
"""Bytes of one message of the burst: small enough for a link of 0.2 Mbit/s to deliver some in time."""
NEAR = 1e-3
"""Seconds one way below which a quarter of the burst is enough: there is no window to open first."""
LONGEST = 2.0
"""Seconds for which a burst goes on where half its bytes have not arrived: a slow link's, or one whose windows are
still opening."""
FEWEST = 8
"""Messages that must have arrived for a burst to end by the clock: fewer say how busy this machine is, not the link."""
FIRST_WINDOW = 2
IN_FLIGHT = 128
"""Messages of the burst that may be unacknowledged, at first and at most: 8 MiB, over the bandwidth-delay product of
1 Gbit/s at 60 ms."""
SHORTEST_TRIP = 0.05
"""Seconds over which acknowledgements are counted on a near link, where they come many at a time."""


async def measure(
    link: PeerLink, me: str, next_transfer: Callable[[], int], seconds: float, limit: int, patience: float
) -> LinkMeasurement:
    """One link: half the shortest of PINGS round trips, and the rate that a burst of `seconds` and at most `limit`
    bytes (a quarter of them on a near link) reached in its second half.

    What has arrived `patience` seconds after the burst counts. A link that carried nothing, or cannot be reached within
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
    result.bandwidth_bps = await _burst(link, next_transfer, min(trips), seconds, limit, patience)
    return result


async def _burst(
    link: PeerLink, next_transfer: Callable[[], int], trip: float, seconds: float, limit: int, patience: float
) -> float:
    header, payload = _header(), bytes(BURST_MESSAGE)
    begin = now = time.monotonic()
    arrived: list[tuple[float, int]] = []  # messages written together are acknowledged together
    pending: set[asyncio.Future[float]] = set()
    sent = 0
    while True:
        there = sent - BURST_MESSAGE * len(pending)
        until = begin + (patience if there < FEWEST * BURST_MESSAGE else LONGEST if 2 * there < limit else seconds)
        while len(pending) < window(arrived, now, trip) and sent < limit and now < until:
            pending.add(_probe(link, next_transfer(), header, payload))
            sent += BURST_MESSAGE
        if not pending:
            break
        left = min(until, begin + LONGEST) + patience - now
        done, pending = await asyncio.wait(pending, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)
        if not done:
            link.drop(lambda waiting: waiting is header)
            break
        arrived.append((max(future.result() for future in done), len(done)))
        now = time.monotonic()
    return bandwidth(begin, arrived)


def window(arrived: Sequence[tuple[float, int]], now: float, trip: float) -> int:
    """Messages that may be on the way: twice those of the last round trip (``trip`` seconds). So they are twice
    as many in each while the link takes more, and no more than it takes: a slow one is not filled for seconds."""
    since = now - max(trip, SHORTEST_TRIP)
    return min(FIRST_WINDOW + 2 * sum(count for when, count in arrived if when > since), IN_FLIGHT)


def bandwidth(begin: float, arrived: Sequence[tuple[float, int]]) -> float:
    """Bits per second in the second half of the time between the first and the last acknowledgement; 0 without any.

    ``arrived``: (when, how many messages of BURST_MESSAGE bytes) of each acknowledgement, in order; ``begin``: when the
    burst did. The first half is left out: windows were still opening.
    """
    if not arrived:
        return 0.0
    first, last = arrived[0][0], arrived[-1][0]
    if last == first:
        return 8.0 * BURST_MESSAGE * sum(count for _, count in arrived) / max(last - begin, 1e-9)
    opened = max(when for when, _ in arrived if when <= (first + last) / 2)
    return 8.0 * BURST_MESSAGE * sum(count for when, count in arrived if when > opened) / (last - opened)


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
