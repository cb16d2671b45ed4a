"""For whom a trainer waits, said to the coordinator while it lasts long.

Whoever computes nothing and claims to act is found by this alone: all others wait, and say for whom
(coordinator/membership/faults/waits.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from ...proto.connections.patience import UNIT
from ...proto.control_pb2 import Report, Waits

LONG_S = 10.0
"""What lasts no longer is not worth a word; and after so long it is said again."""
PAUSE_S = 2.0
"""Who has not looked for the coordinator's answer for so long waits for another one."""
MOST = 64
"""Names that are said."""
ARRIVES_S = 60.0
"""Bytes arrive if a unit of them has within so long."""
SLOWEST_UNIT = UNIT >> 4
"""Less may be what everybody asks again of everybody."""

Peers = Callable[[], Collection[str]]


class Waiting:
    """One trainer's. ``arrived()``: bytes that have arrived here; ``report`` takes what the coordinator is to hear."""

    def __init__(
        self, report: Callable[[Report], None], arrived: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report, self._arrived, self._clock = report, arrived, clock
        self._peers: Peers | None = None
        self._next = 0.0
        self._asked: float | None = None
        """When it was last seen to wait for the coordinator."""
        self._mark: int | None = None
        self._moved = -math.inf

    @contextmanager
    def on(self, peers: Peers) -> Iterator[None]:
        """Meanwhile this node waits for those of ``peers()``; of none while it is empty."""
        before, self._peers = self._peers, peers
        self._begin()
        try:
            yield
        finally:
            self._peers = before

    def on_the_coordinator(self, view: int) -> None:
        """Called again and again while an answer of the coordinator's is waited for."""
        now = self._clock()
        if self._asked is None or now - self._asked > PAUSE_S:
            self._begin()
        self._asked = now
        self._say(view, (), now)

    def tick(self, view: int) -> None:
        """Called while this node trains, again and again, also where it does not wait."""
        if self._peers is not None and (now := self._clock()) >= self._next and (peers := self._peers()):
            self._say(view, sorted(peers)[:MOST], now)

    def _begin(self) -> None:
        self._next = self._clock() + LONG_S
        self._mark, self._moved = None, -math.inf

    def _say(self, view: int, peers: Collection[str], now: float) -> None:
        if now < self._next:
            return
        self._next = now + LONG_S
        arrived = self._arrived()
        if self._mark is None:
            self._mark = arrived
        elif arrived - self._mark >= SLOWEST_UNIT:
            self._mark, self._moved = arrived, now
        moves = now - self._moved <= ARRIVES_S
        self._report(Report(waits=Waits(view=view, peers=peers, moves=moves)))
