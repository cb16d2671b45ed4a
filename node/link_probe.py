"""Measures the links from this node to others: latency by small messages, bandwidth by a short burst.

A probe is an ordinary message of kind PROBE that its receiver throws away and acknowledges; it needs no view.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ..proto.control_pb2 import LinkMeasurement
from ..proto.data_pb2 import Header, Kind
from .links import PeerLink
from .send_queue import Outgoing

PINGS = 5
BURST_MESSAGE = 240 << 10
"""Bytes of one message of the burst: small enough for a 1 Mbit/s link to deliver some in time."""
NEAR = 1e-3
"""Seconds one way below which a quarter of the burst is enough: there is no window to open first."""
IN_FLIGHT = 32
"""Messages of the burst that may be unacknowledged: 8 MiB, over the bandwidth-delay product of 1 Gbit/s at 60 ms."""


async def measure(
    link: PeerLink, me: str, next_transfer: Callable[[], int], seconds: float, limit: int, patience: float
) -> LinkMeasurement:
    """One link: half the shortest of PINGS round trips, and the rate of a burst of at most `seconds` and `limit` bytes
    (a quarter of them on a near link).

    A link that cannot be reached within `patience` seconds has bandwidth 0 and latency 0.
    """
    result = LinkMeasurement(to=link.peer.name)
    setattr(result, "from", me)  # a keyword in Python
    try:
        await asyncio.wait_for(link.connected.wait(), patience)
        trips = []
        for _ in range(PINGS):
            begin = time.monotonic()
            trips.append(await asyncio.wait_for(_probe(link, next_transfer(), b""), patience) - begin)
        result.latency_s = min(trips) / 2
        limit = limit // 4 if result.latency_s < NEAR else limit
        result.bandwidth_bps = await asyncio.wait_for(_burst(link, next_transfer, seconds, limit), seconds + patience)
    except asyncio.TimeoutError:
        return result
    return result


async def _burst(link: PeerLink, next_transfer: Callable[[], int], seconds: float, limit: int) -> float:
    """Bits per second between the first and the last acknowledgement."""
    payload = bytes(BURST_MESSAGE)
    begin = time.monotonic()
    arrived: list[float] = []
    pending: set[asyncio.Future[float]] = set()
    sent = 0
    while pending or (sent == 0):
        while len(pending) < IN_FLIGHT and sent < limit and time.monotonic() - begin < seconds:
            pending.add(_probe(link, next_transfer(), payload))
            sent += BURST_MESSAGE
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        arrived.extend(future.result() for future in done)
    first, last = min(arrived), max(arrived)
    if len(arrived) == 1 or last == first:
        return 8.0 * BURST_MESSAGE * len(arrived) / max(last - begin, 1e-9)
    return 8.0 * BURST_MESSAGE * (len(arrived) - 1) / (last - first)


def _probe(link: PeerLink, transfer: int, payload: bytes) -> asyncio.Future[float]:
    """Sends a probe; the future has the time at which it was acknowledged."""
    acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def release() -> None:
        if not acknowledged.done():
            acknowledged.set_result(time.monotonic())

    priority = 2 if payload else 0
    link.send(Outgoing(transfer, priority, Header(kind=Kind.PROBE), memoryview(payload), release))
    return acknowledged
