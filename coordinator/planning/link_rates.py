"""The rates that links reach in training, compared with the measured ones. Pure: the inputs are reports of steps and
the time.

A link was measured when one of its ends joined, by a short burst. Training shows more: the rate of a link while bulk
filled it (node/peers/link_watch.py). That rate is a lower bound of the link's own. An upper bound is the sum of the
rates of all links with which it may have shared a line, at its sender or its receiver. The believed rate is the
measured one, clamped to this range, so that nodes that share a line are not taken for slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median

from ...proto.control_pb2 import Sent
from ...proto.process.rates import rate_text
from ...scheduler.networks.network import NOISE
from .counted import CHANGED, joined
from .speeds import FIRST_PAUSE_S, FORGET_S, LONGEST_PAUSE_S

REPORTS = 8
LEAST_REPORTS = 4
"""Steps with the link full after which its rate is believed."""
Pair = tuple[str, str]
"""(from, to)."""


class LinkRates:
    """``measured(from, to)``: bit/s as measured by a burst, None where it was not."""

    def __init__(self, measured: Callable[[str, str], float | None]) -> None:
        self._measured = measured
        self._seen: dict[Pair, deque[tuple[float, float, float]]] = {}
        """(time, the link's rate, the rate of all that the sender sent meanwhile)."""
        self._beside: dict[Pair, deque[float]] = {}
        """The bytes that came to the receiver meanwhile, divided by those that came over this link."""
        self._counted = measured
        self._told: frozenset[Pair] = frozenset()
        self._next, self._pause = 0.0, FIRST_PAUSE_S

    def step(self, node: str, sent: Iterable[Sent], now: float) -> None:
        """A node's report of a step."""
        for one in sent:
            if one.rate_bps > 0:
                seen = self._seen.setdefault((node, one.peer), deque(maxlen=REPORTS))
                seen.append((now, one.rate_bps, one.rate_bps * max(1.0, one.beside)))
            if one.arrived_beside > 0:
                self._beside.setdefault((one.peer, node), deque(maxlen=REPORTS)).append(one.arrived_beside)

    def forget(self, node: str) -> None:
        """The node has joined again, maybe from elsewhere: forget its links."""
        for known in (self._seen, self._beside):
            for pair in [pair for pair in known if node in pair]:
                del known[pair]

    def confirmed(self, now: float) -> set[Pair]:
        """The links whose rates training has shown lately, whether or not they differ from the measured ones."""
        self._drop_old(now)
        return {pair for pair, seen in self._seen.items() if len(seen) >= LEAST_REPORTS}

    def believed(self, now: float) -> dict[Pair, float]:
        """Bits per second of each link that turned out to be another than measured, by more than measurements vary."""
        found = {}
        for pair in self.confirmed(now):
            seen = self._seen[pair]
            low = median(rate for _, rate, _ in seen)
            high = max(median(every for _, _, every in seen), low * median(self._beside.get(pair, [1.0])))
            known = self._measured(*pair)
            rate = low if known is None else min(max(known, low), high)
            if known is None or not known / (1 + NOISE) < rate < known * (1 + NOISE):
                found[pair] = rate
        return found

    def _drop_old(self, now: float) -> None:
        for seen in self._seen.values():
            while seen and now - seen[0][0] > FORGET_S:  # the link was not used since: it may have recovered
                seen.popleft()

    def enter(self, counted: Callable[[str, str], float | None]) -> None:
        """A view begins. ``counted(from, to)``: bits per second that its plan counts with, None: that is not known."""
        self._counted = counted

    def news(self, now: float) -> str:
        """A sentence when links carry much more or less than the plan counted with, and the planner was not asked about
        them for a while; else empty. The pause doubles while they are the same, as it does for slow nodes."""
        if now < self._next:
            return ""
        told = {}
        for pair, rate in self.believed(now).items():
            counted = self._counted(*pair)
            if counted and not counted / CHANGED < rate < counted * CHANGED:
                told[pair] = f"{pair[0]} > {pair[1]} carries {rate_text(rate)}, not {rate_text(counted)}"
        if not told:
            return ""
        same = frozenset(told) == self._told
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S) if same else FIRST_PAUSE_S
        self._told, self._next = frozenset(told), now + self._pause
        return joined(told)
