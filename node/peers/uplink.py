"""Limits a node's upload to its owner's limit: a token bucket over all bytes that the I/O process writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ...proto.connections.rpc import CHUNK

BURST_SECONDS = 0.5
"""Seconds of the allowed rate that may be sent at once after a pause."""
WRITE_SECONDS = 0.1
"""Seconds of the allowed rate that one write may use, so that messages to other peers do not wait long."""
LEAST_WRITE = 16 << 10
ON_THE_WIRE = 1.03
"""Overhead of TCP, IP and TLS, as a factor on the bytes that are counted."""


class Uplink:
    """``rate``: bits per second, 0: no limit. Small messages (heartbeats, acknowledgements) do not wait, but count."""

    def __init__(self, rate: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate / 8, clock
        self._room = self._rate * BURST_SECONDS
        self._at = clock()
        self._turn = asyncio.Lock()
        self.write = CHUNK if not rate else min(CHUNK, max(LEAST_WRITE, int(self._rate * WRITE_SECONDS)))
        """The most bytes of one write."""

    def spent(self, count: int) -> None:
        """Count ``count`` written bytes."""
        if self._rate:
            self._fill()
            self._room -= count * ON_THE_WIRE

    async def ready(self) -> None:
        """Wait until a write is allowed; waiting tasks take turns."""
        if not self._rate:
            return
        async with self._turn:
            self._fill()
            while self._room <= 0:
                await asyncio.sleep(-self._room / self._rate + 1e-3)
                self._fill()

    def _fill(self) -> None:
        now = self._clock()
        self._room = min(self._room + (now - self._at) * self._rate, self._rate * BURST_SECONDS)
        self._at = now
