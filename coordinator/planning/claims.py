"""How much of a claimed speed a plan counts with: what a node has shown, and what the others' claims make likely.

A node measures its own speed when it joins, and may say anything. One that claims a thousand times what the others have
would get all the work and let everybody wait. So a claim counts up to ``MOST`` times the median of the others', and
beyond that up to ``MOST`` times what the node has shown: the work that it had in a view, in the time that the view's
steps took by the coordinator's clock. A device that really is that fast gets its share in a view or two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

MOST = 4.0
STEPS = 12
"""Steps of a view after which what its nodes have shown counts."""


class Claims:
    """``shown``: node -> Tflop/s that it has computed at least, in a view that trained."""

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
        """It has joined anew, on whatever machine."""
        self.shown.pop(name, None)

    def believed(self, name: str, claimed: float, others: Iterable[float]) -> float:
        """Tflop/s that a plan may count with. ``others``: what the other nodes that are in claim, 0 for nothing."""
        known = [one for one in others if one > 0]
        if not known:
            return claimed
        return min(claimed, MOST * max(median(known), self.shown.get(name, 0.0)))
