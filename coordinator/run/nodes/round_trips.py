"""The round trip of each control stream, measured by a question that the node's I/O process answers at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ....proto import control_pb2 as pb

EVERY_S = 60.0
"""Seconds between two questions to a node."""
LOOK_S = 1.0
"""Seconds between two looks at all nodes."""
LONGEST_S = 30.0
"""Seconds. Longer round trips count as this: a node that answers late on purpose must not slow the run down."""
FIRST_NUMBER = 1 << 31
"""The first number of these questions; profiles send the same question with lower numbers (profiling.py)."""


@dataclass
class _Node:
    number: int
    asked: float
    answered: bool = False
    trips: tuple[float, ...] = ()


class RoundTrips:
    """The shorter of each node's last two round trips, because time in a queue does not count as distance."""

    def __init__(self, tell: Callable[[str, pb.Order], None], clock: Callable[[], float]) -> None:
        """``tell(node, order)`` sends an order."""
        self._tell, self._clock = tell, clock
        self._number, self._looked = FIRST_NUMBER, -math.inf
        self._nodes: dict[str, _Node] = {}

    def of(self, name: str) -> float:
        """Seconds; 0 where it is not known."""
        node = self._nodes.get(name)
        return min(node.trips) if node is not None and node.trips else 0.0

    def came(self, name: str) -> None:
        """A node's control stream is open."""
        self._number += 1
        trips = self._nodes[name].trips if name in self._nodes else ()
        self._nodes[name] = _Node(self._number, self._clock(), trips=trips)
        self._tell(name, pb.Order(clock=pb.ClockAsk(number=self._number)))

    def tick(self, names: Iterable[str]) -> None:
        """Ask the nodes whose last answer is old."""
        now = self._clock()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        for name in names:
            node = self._nodes.get(name)
            if node is not None and node.answered and now - node.asked > EVERY_S:
                self.came(name)

    def answered(self, name: str, answer: pb.ClockAnswer) -> None:
        """A node has answered."""
        node = self._nodes.get(name)
        if node is not None and not node.answered and answer.number == node.number:
            node.answered = True
            node.trips = (*node.trips[-1:], min(self._clock() - node.asked, LONGEST_S))
