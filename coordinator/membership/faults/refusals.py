"""Counts the messages that members refuse from each other, until a node is evicted. Pure.

Only members to which the plan lets the accused send may accuse it: its group, and its neighbours in its pipeline, in
the view that trains. One accuser is never enough, because it may be lying. In a group of seven or more, a third of the
others is not enough either, because they may collude; nor are several nodes that joined by one ticket (one person may
own them all), unless they are more than half of the group. Where only so few can see the fault, they and the accused
are planned apart. A member that accuses, without a second witness, as many nodes as could evict it is put out itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ....scheduler.plans import Plan

ENOUGH = 10
"""Points at which a node is evicted, if they come from enough members (``Circle.are_enough``)."""
ONE_WORD = ENOUGH // 2
"""The most points from one member that count towards an eviction."""
WORD_AGAINST_WORD = 30
"""Points from one member alone after which it and the accused are planned apart."""

Life = tuple[str, str]
"""(name, session)."""


@dataclass(frozen=True)
class Verdict:
    """A decision, with a sentence. ``out``: the node to evict. ``apart``: the nodes to plan apart. Empty: none."""

    out: str = ""
    apart: tuple[str, str] | None = None
    why: str = ""


@dataclass(frozen=True)
class Circle:
    """The nodes whose refusals of a member count. ``others``: number of other members of its group. ``voices``: name ->
    ticket."""

    others: int
    voices: Mapping[str, str]

    def are_enough(self, names: Collection[str]) -> bool:
        """Whether these accusers are too many to be a few nodes that lie together: at least two and more than a third
        of the others, counted by tickets; or most of the group, whatever their tickets."""
        known = [name for name in names if name in self.voices]
        voices = len({self.voices[name] for name in known})
        return voices >= max(2, self.others // 3 + 1) or len(known) >= max(2, self.others // 2 + 1)


def circle_of(plan: Plan, accused: str, tied: bool, tickets: Mapping[str, str]) -> Circle:
    """The circle of a node of a plan; ``tied``: the first and the last stage share a section. Empty for a spare."""
    if accused not in plan.nodes:
        return Circle(0, {})
    stages, ends = set(plan.stages_of(accused)), {0, len(plan.stages) - 1}
    if tied and stages & ends:
        stages |= ends
    group = {name for stage in stages for name in plan.group(stage)} - {accused}
    row = plan.pipelines[plan.pipeline_of(accused)]
    near = {name for one, other in pairwise(row) if accused in (one, other) for name in (one, other)}
    return Circle(len(group), {name: tickets.get(name, "") for name in (group | near) - {accused}})


@dataclass
class Refusals:
    """The points of each accused node by accuser. A message that must not count is 1 point. What keeps a round from
    ending is 30 points, divided among up to three witnesses. What keeps a pipeline's step from ending is 30 points from
    the neighbour, the only witness. A wrong sum is 5 points from each member that has checked it."""

    _points: dict[Life, dict[str, int]] = field(default_factory=dict)
    _alone: dict[str, set[str]] = field(default_factory=dict)
    """Member -> nodes that it accused, in any of its sessions, without another witness."""

    def of(self, life: Life) -> int:
        """Points of a node in its present life, without limits for each accuser."""
        return sum(self._points.get(life, {}).values())

    def forget(self, name: str) -> None:
        """Delete what is held against a node, because a person readmitted it."""
        self._alone.pop(name, None)
        for life in [life for life in self._points if life[0] == name]:
            del self._points[life]

    def count(self, by: Life, accused: Life, points: int, about: Circle, itself: Circle) -> Verdict | None:
        """Count that ``by`` refused something from ``accused``. Returns the decision, or None. ``about``: the accused's
        circle; ``itself``: the circle of ``by``.

        A refusal by a node outside the accused's circle is ignored.
        """
        name = by[0]
        if name not in about.voices:
            return None
        given = self._points.setdefault(accused, {})
        given[name] = given.get(name, 0) + max(1, min(points, WORD_AGAINST_WORD))
        if verdict := self._judge(accused, about):
            return verdict
        alone = self._alone.setdefault(name, set())
        if given[name] < WORD_AGAINST_WORD or accused[0] in alone:
            return None
        alone.add(accused[0])
        if itself.are_enough(alone):
            return Verdict(out=name, why=f"it alone refuses what {' and '.join(sorted(alone))} send")
        pair = (min(name, accused[0]), max(name, accused[0]))
        why = f"{name} refuses what {accused[0]} sends, and nobody else has seen it: the two are planned apart"
        return Verdict(apart=pair, why=why)

    def _judge(self, accused: Life, about: Circle) -> Verdict | None:
        given = {name: points for name, points in self._points[accused].items() if name in about.voices}
        if not about.are_enough(given) or sum(min(points, ONE_WORD) for points in given.values()) < ENOUGH:
            return None
        del self._points[accused]
        why = f"what it sent was refused by {', '.join(sorted(given))} ({sum(given.values())} points)"
        return Verdict(out=accused[0], why=why)
