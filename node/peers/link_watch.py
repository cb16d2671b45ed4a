"""How fast links are while training fills them: the kernel's totals of each link in, rates out. No I/O, no probes.

A link is busy while one of its connections always has unacknowledged data, for long enough that its window has opened,
and the socket buffers of neither end limit it. The rate at such a time is a lower bound of the link's bandwidth. The
bandwidth may be higher for two reasons. There was too little to send: then the kernel's own delivery rate is higher,
because it leaves out the times in which the sender was the limit. Or the link shares a line with other links of its
sender or receiver: so each end also reports the sum over its links at that time. The bandwidth lies between the link's
own rate and the highest of these.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from .lanes import HELD_UP
from .tcp_info import TcpFigures

TICK_SECONDS = 0.5
FULL = 0.9
"""A link counts as busy in a tick if data was unacknowledged for at least this fraction of it."""
OPENING_TRIPS = 10
"""A busy link is measured only after so many round trips, in which its windows open. Current round trips count, which
are longer than the shortest if acknowledgements queue behind data of the other direction."""
LEAST_ARRIVED = 16 << 10
"""Bytes that must arrive within a tick to count as incoming bulk."""
MOST_TICKS = 240
"""Ticks kept between two reports, at most."""


@dataclass(frozen=True)
class Filled:
    """Measurements of the link to one peer: rate_bps, beside and arrived_beside of control.proto's Sent."""

    rate_bps: float = 0.0
    beside: float = 0.0
    arrived_beside: float = 0.0


@dataclass
class _Link:
    before: TcpFigures = field(default_factory=TcpFigures)
    full_s: float = 0.0  # for how long it has been busy without a pause
    rates: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_TICKS))  # (at least, at most)
    arrived: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TICKS))


class LinkWatch:
    """Measures the links of one node, by peer."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._at, self._arrived = 0.0, Counter[str]()

    def tick(self, now: float, sent: Mapping[str, TcpFigures], arrived: Mapping[str, int]) -> None:
        """Take in new totals. ``sent``: the kernel's totals for each link; ``arrived``: bytes received from each
        peer; both since the start."""
        seconds, self._at = now - self._at, now
        grown = {}
        for peer, totals in sent.items():
            link = self._links.setdefault(peer, _Link())
            if totals.connections and totals.connections == link.before.connections:
                grown[peer] = totals.since(link.before)
            link.before = totals
        everything = sum(_carried(one) for one in grown.values())
        for peer, one in grown.items():
            link = self._links[peer]
            if one.longest_busy_s < FULL * seconds or one.held_up_s > HELD_UP * seconds:
                link.full_s = 0.0
                continue
            if link.full_s >= OPENING_TRIPS * max(one.rtt_s, one.least_rtt_s) and link.full_s > 0:
                link.rates.append((8 * _carried(one) / seconds, max(8 * everything / seconds, one.busiest_bps)))
            link.full_s += seconds
        self._take_in(arrived)

    def _take_in(self, arrived: Mapping[str, int]) -> None:
        new = Counter(arrived)
        new.subtract(self._arrived)
        self._arrived = Counter(arrived)
        total = sum(new.values())
        for peer, count in new.items():
            if count >= LEAST_ARRIVED:
                self._links.setdefault(peer, _Link()).arrived.append(total / count)

    def take(self) -> dict[str, Filled]:
        """The measurements of each link since the last call: medians over the ticks."""
        found = {}
        for peer, link in self._links.items():
            if not link.rates and not link.arrived:
                continue
            rate = median(own for own, _ in link.rates) if link.rates else 0.0
            total = median(every for _, every in link.rates) if link.rates else 0.0
            found[peer] = Filled(rate, max(1.0, total / rate) if rate else 0.0, median(link.arrived or [0.0]))
            link.rates.clear()
            link.arrived.clear()
        return found


def _carried(grown: TcpFigures) -> int:
    return max(0, grown.sent - grown.resent)
