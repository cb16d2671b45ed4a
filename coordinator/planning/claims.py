"""Limits on a node's claimed speed: by the speed that it has shown, and by the other nodes' claims.

A node measures its own speed when it joins, and may report any number. A node that claims a thousand times the others'
speed would get all the work, and all would wait for it. So a claim counts up to ``MOST`` times the median of the
others' claims, or up to ``MOST`` times the speed that the node has shown: its work in a view, divided by the time of
the view's steps on the coordinator's clock. A device that really is that fast gets its share after a view or two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

MOST = 4.0
STEPS = 12
"""Steps of a view after which its nodes' shown speeds count."""


class Claims:
    """``shown``: node -> a lower bound of its Tflop/s, from a view that trained."""

    def __init__(self) -> None:
        self.shown: dict[str, float] = {}
        self._work: Mapping[str, float] = {}
        self._ends: deque[float] = deque(maxlen=STEPS + 1)

    def enter(self, work: Mapping[str, float]) -> None:
        """A view begins. ``work``: flops of each node in a step."""
        self._work = dict(work)
        self._ends.clear()

    def step(self, now: float) -> None:
        """All nodes of the view have finished a step."""
        self._ends.append(now)
        if len(self._ends) <= STEPS or now <= self._ends[0]:
            return
        seconds = (now - self._ends[0]) / STEPS
        for name, flops in self._work.items():
            self.shown[name] = max(self.shown.get(name, 0.0), flops / 1e12 / seconds)

    def forget(self, name: str) -> None:
        """The node has joined again, maybe on another machine: forget what it has shown."""
        self.shown.pop(name, None)

    def believed(self, name: str, claimed: float, others: Iterable[float]) -> float:
        """The Tflop/s that a plan may assume. ``others``: the claims of the other nodes in the run, 0 for no claim."""
        known = [one for one in others if one > 0]
        if not known:
            return claimed
        return min(claimed, MOST * max(median(known), self.shown.get(name, 0.0)))
