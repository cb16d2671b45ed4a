"""The speeds that nodes reach in training, compared with those that the plan assumed. Pure: the inputs are reports and
the time.

A node's speed was measured when it joined, alone and with a matrix product. In training its speed may differ: its
machine has other work, or runs hot. Compared are not seconds but a node's part of its speed with the other nodes'
parts; a difference that a busy moment explains is ignored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median, median_low

from ...job.chosen import MICROBATCH_KEY
from ...job.data.facts import Facts
from ...scheduler.plans import Plan

STEPS = 12
"""Steps of a view after which a node's speed is believed."""
SLOW = 0.6
"""A node is called slow when it reaches less than this part of the speed that it is planned with."""
FEW = 32
"""Up to this many nodes, each report is compared with all others at once; with more nodes, once a second."""
GROSS, GROSS_STEPS, GROSS_S = 0.3, 3, 3.0
"""(fraction of the speed, steps, seconds): a node below the fraction in this many steps in a row, over at least these
seconds, is slow too. Without such a node the others would be faster, and a busy moment is shorter than that."""
FORGET_S = 600.0
"""Seconds after which a slow node that the plan left out counts as recovered, because it was not measured meanwhile."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0


class Speeds:
    """``nominal(node)``: the speed that a node was measured with at its join, in Tflop/s."""

    def __init__(self, facts: Facts, microbatch: int, nominal: Callable[[str], float]) -> None:
        self._layers = [layer.flops_per_sample for layer in facts.profile.layers]
        self._microbatch, self._nominal = microbatch, nominal
        self._work: dict[str, float] = {}
        self._seconds: dict[str, deque[float]] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        """Node -> (the part of its speed that it reaches, when that was seen)."""
        self.usual = 1.0
        """The part of their measured speed that nodes reach in training."""
        self._counted = 1.0
        """What ``usual`` was when it was last told."""
        self._told: Mapping[str, float] = {}
        self._next, self._pause = 0.0, FIRST_PAUSE_S
        self._compared = -math.inf

    def enter(self, plan: Plan) -> None:
        """A view begins: other work for everybody."""
        self._work, self._seconds, self._counted = {}, {}, self.usual
        size = int(plan.chosen.get(MICROBATCH_KEY, self._microbatch))
        for pipeline, microbatches in zip(plan.pipelines, plan.microbatches, strict=True):
            for name, (first, last) in zip(pipeline, plan.stages, strict=True):
                flops = sum(self._layers[first : last + 1]) * microbatches * size
                self._work[name] = self._work.get(name, 0.0) + flops

    @property
    def work(self) -> dict[str, float]:
        """Flops of each node of the view in a step."""
        return dict(self._work)

    def step(self, node: str, compute_seconds: float, now: float) -> None:
        """A node's report of a step."""
        if node not in self._work or compute_seconds <= 0:
            return
        self._seconds.setdefault(node, deque(maxlen=STEPS)).append(compute_seconds)
        if len(self._seconds) == len(self._work) and (len(self._work) <= FEW or now - self._compared >= 1.0):
            self._compared = now
            if (known := min(map(len, self._seconds.values()))) >= STEPS:
                self._compare(now)
            elif known >= GROSS_STEPS and sum(list(self._seconds[node])[-GROSS_STEPS:]) >= GROSS_S:
                self._compare_grossly(now)

    def _reached(self, name: str, seconds: float) -> float:
        return self._work[name] / 1e12 / seconds / max(self._nominal(name), 1e-9)

    def _compare_grossly(self, now: float) -> None:
        late = {name: list(seconds)[-GROSS_STEPS:] for name, seconds in self._seconds.items()}
        usual = _usual(self._reached(name, median(seconds)) for name, seconds in late.items())
        for name, seconds in late.items():
            if sum(seconds) >= GROSS_S and self._reached(name, min(seconds)) < GROSS * usual:
                self.usual = usual
                self._slow[name] = (max(self._reached(name, median(seconds)) / usual, 0.01), now)

    def _compare(self, now: float) -> None:
        reached = {name: self._reached(name, median(seconds)) for name, seconds in self._seconds.items()}
        usual = self.usual = _usual(reached.values())
        for name, value in reached.items():
            self._slow.pop(name, None)
            if value < SLOW * usual:
                self._slow[name] = (max(value / usual, 0.01), now)

    def factor(self, node: str, now: float) -> float:
        """The factor by which a plan multiplies a node's measured speed.

        It is 1 while no node is slow. When one is, all nodes are planned with the speed that they really reach in
        steps, so that the slow one can be compared with what a step takes besides computing.
        """
        return self.part(node, now) * self.usual if self._slow else 1.0

    def part(self, node: str, now: float) -> float:
        """How much of its speed a node reaches, compared with the others: 1 unless it is slow."""
        part, seen = self._slow.get(node, (1.0, now))
        if node not in self._work and now - seen > FORGET_S:
            return 1.0
        return part

    @property
    def reached(self) -> float:
        """The part that nodes reach of the speed that a plan assumes; 1 while a node is slow, because ``factor`` then
        includes it."""
        return 1.0 if self._slow else self.usual

    def pace(self) -> str:
        """A sentence when nodes turn out to reach another part of their measured speed than a plan counted with."""
        if 0.75 < self.usual / self._counted < 1.33:
            return ""
        self._counted = self.usual
        return f"nodes compute at {self.usual:.0%} of the speed they were measured with"

    def news(self, now: float) -> str:
        """A sentence when nodes of the view are slow and the planner was not asked about them for a while; else empty.

        The pause doubles while the same nodes are slow, for then the planner has found nothing better.
        """
        slow = {name: part for name, (part, _) in self._slow.items() if name in self._work}
        if not slow or now < self._next:
            return ""
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S) if set(slow) == set(self._told) else FIRST_PAUSE_S
        self._told, self._next = slow, now + self._pause
        return "; ".join(f"{name} computes at {part:.0%} of its speed" for name, part in sorted(slow.items()))


def _usual(reached: Iterable[float]) -> float:
    """The usual part, from the faster half of the nodes, because the other half may be slow. With three or more nodes,
    no single node decides it."""
    found = sorted(reached)
    return median_low(found[len(found) // 2 :])
