"""The rate that the plan in force assumes for each link, and the measurements since. Pure.

A plan uses the measurements that exist when it is asked for, and guesses for other links: the slowest rate that either
end has shown or, among many nodes, the smaller of both ends' best. A later measurement may show that a guess was wrong;
this file then asks for another plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from ...proto.process.rates import rate_text
from ...scheduler.networks.network import ALL_MEASURED, DEFAULT_BANDWIDTH

CHANGED = 1.5
"""A link whose rate differs by this factor from what the plan assumed asks for another plan."""

Pair = tuple[str, str]
"""(from, to)."""


class Counted:
    """``rates``: bit/s of each link that was measured when a plan of ``names`` was asked for, at time ``at``."""

    def __init__(self, rates: Mapping[Pair, float], names: Iterable[str], at: float) -> None:
        self.at = at
        self._names = frozenset(names)
        self._known = {(there, here): rate for (here, there), rate in rates.items()} | dict(rates)
        self._few = len(self._names) <= ALL_MEASURED
        self._told: set[Pair] = set()

    def rate(self, source: str, target: str) -> float:
        """The bit/s that the plan assumes, measured or guessed; 0: the two can't reach each other."""
        if (known := self._known.get((source, target))) is not None:
            return known
        out, into = self._lines
        return min(out.get(source, DEFAULT_BANDWIDTH), into.get(target, DEFAULT_BANDWIDTH))

    @cached_property
    def _lines(self) -> tuple[dict[str, float], dict[str, float]]:
        """The guessed rate of a link without a measurement, by its sender and by its receiver."""
        better = min if self._few else max
        out: dict[str, float] = {}
        into: dict[str, float] = {}
        for (source, target), rate in self._known.items():
            if rate > 0:
                out[source] = better(out.get(source, rate), rate)
                into[target] = better(into.get(target, rate), rate)
        return out, into

    def late(self, links: Mapping[Pair, float], when: Mapping[Pair, float]) -> str:
        """A sentence when measurements made after the question differ much from the rates that the plan assumes; once
        for each link. ``when``: link -> time of its measurement."""
        told = {}
        for pair, rate in links.items():
            if when.get(pair, self.at) <= self.at or pair in self._told or not self._names.issuperset(pair):
                continue
            counted = self.rate(*pair)
            if not counted / CHANGED < rate < counted * CHANGED:
                before = f"{rate_text(counted)} {'counted with' if pair in self._known else 'guessed'}"
                told[pair] = f"{pair[0]} > {pair[1]} was measured late: {rate_text(rate)}, not the {before}"
        self._told.update(told)
        return joined(told)


def joined(told: Mapping[Pair, str]) -> str:
    """The first three sentences, and how many more there are."""
    few = [told[pair] for pair in sorted(told)[:3]]
    return "; ".join(few) + (f"; and {len(told) - 3} links more" if len(told) > 3 else "")
