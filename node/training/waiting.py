"""Reports to the coordinator for which nodes a trainer waits, while a long wait lasts.

A node that claims to act but computes nothing can be found only by this: all others wait for it, and say so
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
"""Seconds after which a wait is reported, and between two reports of it."""
PAUSE_S = 2.0
"""Seconds without a call of `on_the_coordinator` after which the next call begins a new wait."""
MOST = 64
"""The most names in one report."""
ARRIVES_S = 60.0
"""Seconds within which at least one unit of bytes must have arrived for bytes to count as arriving."""
SLOWEST_UNIT = UNIT >> 4
"""A unit, in bytes; less may be only the repeated requests that all nodes send each other."""

Peers = Callable[[], Collection[str]]


class Waiting:
    """The waits of one trainer. ``arrived()``: bytes that have arrived here; ``report``: sends a report to the
    coordinator."""

    def __init__(
        self, report: Callable[[Report], None], arrived: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report, self._arrived, self._clock = report, arrived, clock
        self._peers: Peers | None = None
        self._next = 0.0
        self._asked: float | None = None
        """When `on_the_coordinator` was last called."""
        self._mark: int | None = None
        self._moved = -math.inf

    @contextmanager
    def on(self, peers: Peers) -> Iterator[None]:
        """A context in which this node waits for the nodes that ``peers()`` returns; empty: for none."""
        before, self._peers = self._peers, peers
        self._begin()
        try:
            yield
        finally:
            self._peers = before

    def on_the_coordinator(self, view: int) -> None:
        """Called repeatedly while this node waits for an answer of the coordinator."""
        now = self._clock()
        if self._asked is None or now - self._asked > PAUSE_S:
            self._begin()
        self._asked = now
        self._say(view, (), now)

    def tick(self, view: int) -> None:
        """Called repeatedly while this node trains, whether it waits or not."""
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
