"""Counts the messages that members refuse from each other, until a node is evicted: a pure table.

Only members to which the plan lets the accused send may accuse it: its group, and its neighbours in its pipeline, in
the view that trains. One accuser is never enough, for it may be the liar. In a group of seven or more, a third of the
others is not enough either, for they may collude; nor are several nodes that joined by one ticket (one person may own
them all), unless they are more than half of the group. Where only that few could see the fault, they and the accused
are planned apart. A member that alone accuses as many as could evict it is put out itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ....scheduler.plans import Plan

ENOUGH = 10
"""Points that evict a node, if they come from enough members (``Circle.are_enough``)."""
ONE_WORD = ENOUGH // 2
"""The most points of one member that count towards that."""
WORD_AGAINST_WORD = 30
"""Points of one member alone after which the two are planned apart."""

Life = tuple[str, str]
"""(name, session)."""


@dataclass(frozen=True)
class Verdict:
    """What follows, as a sentence. ``out``: who is evicted. ``apart``: who are planned apart. Empty: nobody."""

    out: str = ""
    apart: tuple[str, str] | None = None
    why: str = ""


@dataclass(frozen=True)
class Circle:
    """Whose word counts about a member. ``others``: how many its group has besides. ``voices``: name -> ticket."""

    others: int
    voices: Mapping[str, str]

    def are_enough(self, names: Collection[str]) -> bool:
        """Whether these, who say the same, cannot be a few that lie together: two, and more than a third of the others,
        each with a ticket of its own; or most of the group, whatever their tickets."""
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
    """Points by the accused and who gave them. A message that must not count is one point; what keeps a round from
    ending is thirty, shared by those who see it, up to three; what keeps a pipeline's step from ending is thirty, for
    only the neighbour sees it; a sum that was made wrongly is five, from each member that has checked it."""

    _points: dict[Life, dict[str, int]] = field(default_factory=dict)
    _alone: dict[str, set[str]] = field(default_factory=dict)
    """The nodes that a member accused, in any of its sessions, without another witness."""

    def of(self, life: Life) -> int:
        """Points of a node's present life, as they were given."""
        return sum(self._points.get(life, {}).values())

    def forget(self, name: str) -> None:
        """A person lets a member begin anew."""
        self._alone.pop(name, None)
        for life in [life for life in self._points if life[0] == name]:
            del self._points[life]

    def count(self, by: Life, accused: Life, points: int, about: Circle, itself: Circle) -> Verdict | None:
        """``by`` refused something of ``accused``: what follows. ``about``: the accused's circle, ``itself``: ``by``'s.

        Whose word does not count about a member is not heard.
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
