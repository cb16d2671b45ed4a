"""How many bulk connections a link has, and how many unsent bytes each may buffer, from the kernel's figures. No I/O.

One connection carries at most one window per round trip, and the socket buffers of both ends limit the window (Linux's
defaults: 4 MiB to send, of which about 2.6 MB are payload: 210 Mbit/s at 100 ms). A congestion control that takes every
loss for congestion reaches 1.22 segments / (round trip x sqrt(loss)) (Mathis et al. 1997), whatever the link's
bandwidth. In both cases k connections carry k times as much. Otherwise one connection fills the link, and more of them
only compete.
"""

from __future__ import annotations

import math

from ...proto.connections.rpc import CHUNK
from .tcp_info import TcpFigures

MOST = 4
"""The most bulk connections of one direction."""
LEAST_BUSY = 0.3
"""Seconds of sending after which the figures are judged."""
HELD_UP = 0.15
"""Another connection is opened if a full socket buffer held the sender up for more than this fraction of the time."""
LOSS = 2e-4
QUEUE = 1.25
"""A round trip of this many times the shortest one means a queue: the link is full, more connections would only
lengthen it, and its losses come from that queue."""
GAIN = 1.1
"""Factor by which the last connection must have raised the rate: otherwise the link is full, and another connection
would only lose packets."""
STANDS_LOSS = ("bbr",)
"""Prefixes of the names of congestion controls that do not slow down because of a loss alone."""


def lanes_wanted(lanes: int, seen: TcpFigures, gained: float = math.inf) -> tuple[int, str]:
    """(bulk connections from now on, why): ``lanes`` or one more. ``seen``: the figures while there were ``lanes``.
    ``gained``: the rate with ``lanes`` connections divided by the rate with one fewer."""
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
"""Seconds that one write may take. About three writes lie between the queue and the network, and an urgent message
waits for them."""
LEAST_CHUNK = 64 << 10


def ahead(rate_bps: float) -> tuple[int, int]:
    """(bytes of one write, bytes that may lie unsent in a socket) on a link of ``rate_bps`` (0: not known yet)."""
    chunk = CHUNK if rate_bps <= 0 else max(LEAST_CHUNK, min(CHUNK, int(rate_bps / 8 * AHEAD_S)))
    return chunk, chunk
