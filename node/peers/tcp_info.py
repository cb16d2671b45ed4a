"""The kernel's figures of this process's TCP connections: how fast they are and what limits them.

Only Linux has these figures; on other systems no connection is found, and a link keeps its number of connections.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

from ...proto.connections.sockets import connections

_TCP_INFO, _TCP_CONGESTION, _TCP_NOTSENT_LOWAT = 11, 13, 25
_INFO = struct.Struct("=68xI76xI8xQQQQ8xQQ")  # struct tcp_info: rtt, min_rtt and the totals below


@dataclass(frozen=True)
class TcpFigures:
    """Totals over several connections since they began, and the round-trip times of the connection that was busy
    longest (``rtt_s``, ``least_rtt_s``).

    ``held_up_s``: the part of ``busy_s`` in which a socket buffer of either end limited the window.
    """

    busy_s: float = 0.0
    held_up_s: float = 0.0
    sent: int = 0  # bytes, including retransmitted ones
    resent: int = 0
    rtt_s: float = 0.0
    least_rtt_s: float = 0.0
    rate_bps: float = 0.0  # the kernel's latest delivery rate, summed over connections
    congestion: str = ""
    connections: int = 0
    longest_busy_s: float = 0.0  # busy time of the connection that was busy longest
    busiest_bps: float = 0.0  # rate_bps, if there are several, without the one that was busy for the shortest time

    def since(self, earlier: TcpFigures) -> TcpFigures:
        """The growth of the totals since ``earlier``; all other fields keep their present values."""
        return TcpFigures(
            self.busy_s - earlier.busy_s,
            self.held_up_s - earlier.held_up_s,
            self.sent - earlier.sent,
            self.resent - earlier.resent,
            self.rtt_s,
            self.least_rtt_s,
            self.rate_bps,
            self.congestion,
            self.connections,
            self.longest_busy_s - earlier.longest_busy_s,
            self.busiest_bps,
        )


def connected_to(addresses: Collection[tuple[str, int]]) -> list[socket.socket]:
    """Duplicates of this process's TCP connections to any of these (address, port); the caller closes them."""
    found: list[socket.socket] = []
    for one, end in connections():
        if end in addresses:
            found.append(one)
        else:
            one.close()
    return found


def keep_unsent_short(connection: socket.socket, limit: int) -> None:
    """Limits the unsent bytes in the connection's buffer to about ``limit``; bytes in flight do not count."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, limit)


def figures(connections: Collection[socket.socket]) -> TcpFigures:
    """The figures of these connections together, as far as the kernel has them."""
    all_of_them = []
    for one in connections:
        with contextlib.suppress(OSError, struct.error):  # the connection has ended, or the kernel is older than 4.19
            info = one.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size)
            name = one.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16).split(b"\0")[0].decode()
            all_of_them.append((name, *_INFO.unpack(info)))
    if not all_of_them:
        return TcpFigures()
    names, rtt, least, rate, busy, window, buffer, sent, resent = zip(*all_of_them, strict=True)
    return TcpFigures(
        sum(busy) / 1e6,
        (sum(window) + sum(buffer)) / 1e6,
        sum(sent),
        sum(resent),
        rtt[busy.index(max(busy))] / 1e6,
        min(least) / 1e6,
        8.0 * sum(rate),
        names[0],
        len(names),
        max(busy) / 1e6,
        8.0 * (sum(rate) - (rate[busy.index(min(busy))] if len(rate) > 1 else 0)),
    )
