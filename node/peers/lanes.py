"""How many bulk connections a link has, and how much they hold ahead: from what the kernel saw of them. No I/O.

One connection carries at most its window in a round trip, and the window is at most what the socket buffers of both
ends allow (stock Linux: 4 MiB to send, of which about 2.6 MB are payload: 210 Mbit/s at 100 ms). A congestion control
that takes every loss for congestion gets 1.22 segments / (round trip x sqrt(loss)) (Mathis et al. 1997), whatever
the rate. In both cases k connections carry k times as much. Where neither holds, one connection fills the link, and
more of them only disturb each other.
"""

from __future__ import annotations

import math

from ...proto.connections.rpc import CHUNK
from .tcp_info import TcpFigures

MOST = 4
"""Bulk connections of one direction."""
LEAST_BUSY = 0.3
"""Seconds of sending that say something."""
HELD_UP = 0.15
"""The part of them that the buffers may cost before another connection is worth its while."""
LOSS = 2e-4
QUEUE = 1.25
"""Round trips of so many least ones mean a queue: the link is full, and more connections would only lengthen it. What
is lost then was lost to it."""
GAIN = 1.1
"""Where the last connection has not brought that much, the link is full: another would only lose packets to it."""
STANDS_LOSS = ("bbr",)
"""Congestion controls (by the beginning of their names) that a loss by itself does not slow down."""


def lanes_wanted(lanes: int, seen: TcpFigures, gained: float = math.inf) -> tuple[int, str]:
    """(bulk connections from now on, why): as many as there are, or one more. ``seen``: while there were ``lanes``,
    which carry ``gained`` times what one fewer did."""
    if lanes >= MOST or seen.busy_s < LEAST_BUSY or gained < GAIN:
        return lanes, ""
    queued = seen.rtt_s > QUEUE * seen.least_rtt_s
    held_up = seen.held_up_s / seen.busy_s
    if held_up > HELD_UP and not queued:
        return lanes + 1, f"socket buffers held it up for {held_up:.0%} of the time"
    lost = seen.resent / max(seen.sent, 1)
    if lost > LOSS and not queued and not seen.congestion.startswith(STANDS_LOSS):
        return lanes + 1, f"{seen.congestion} with {lost:.2%} lost and no queue"
    return lanes, ""


AHEAD_S = 0.02
"""How long one write may take. About three lie between the queue and the wire, and what is urgent waits for them."""
LEAST_CHUNK = 64 << 10


def ahead(rate_bps: float) -> tuple[int, int]:
    """(bytes of a write, bytes that may lie unsent in a socket) on a link of that rate; 0 where it is not known yet."""
    chunk = CHUNK if rate_bps <= 0 else max(LEAST_CHUNK, min(CHUNK, int(rate_bps / 8 * AHEAD_S)))
    return chunk, chunk
