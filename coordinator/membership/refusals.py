"""What members refuse of each other, counted until somebody is evicted: a pure table.

Nobody is evicted on the word of one member, who may be the one that lies. Where only one member could see what was
wrong, the two are planned apart. Whoever stands alone against two others is out itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ENOUGH = 10
"""Points that evict a node, from two members or more."""
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


@dataclass
class Refusals:
    """Points by the accused and who gave them. A message that must not count is one point; what keeps a round from
    ending is thirty, shared by those who see it, up to three; what keeps a pipeline's step from ending is thirty, for
    only the neighbour sees it; a sum that was made wrongly is five, from each member that has checked it."""

    _points: dict[Life, dict[str, int]] = field(default_factory=dict)
    _alone: dict[str, set[str]] = field(default_factory=dict)
    """Whom a member accused, in any of its lives, of what nobody else has seen."""

    def of(self, life: Life) -> int:
        """Points of a node's present life, as they were given."""
        return sum(self._points.get(life, {}).values())

    def count(self, by: Life, accused: Life, points: int) -> Verdict | None:
        """``by`` refused something of ``accused``: what follows."""
        given = self._points.setdefault(accused, {})
        name = by[0]
        given[name] = given.get(name, 0) + max(1, min(points, WORD_AGAINST_WORD))
        if verdict := self._judge(accused):
            return verdict
        alone = self._alone.setdefault(name, set())
        if given[name] < WORD_AGAINST_WORD or accused[0] in alone:
            return None
        alone.add(accused[0])
        if len(alone) > 1:
            return Verdict(out=name, why=f"it alone refuses what {' and '.join(sorted(alone))} send")
        pair = (min(name, accused[0]), max(name, accused[0]))
        why = f"{name} refuses what {accused[0]} sends, and nobody else has seen it: the two are planned apart"
        return Verdict(apart=pair, why=why)

    def _judge(self, accused: Life) -> Verdict | None:
        given = self._points[accused]
        if sum(min(points, ONE_WORD) for points in given.values()) < ENOUGH:
            return None
        del self._points[accused]
        why = f"what it sent was refused by {', '.join(sorted(given))} ({sum(given.values())} points)"
        return Verdict(out=accused[0], why=why)
