"""What members refuse of each other, counted until somebody is evicted: a pure table."""

from __future__ import annotations

from dataclasses import dataclass, field

BY_SEVERAL = 10
"""Points from two members or more that evict a node."""
BY_ONE = 30
"""Points that evict it on the word of one member alone, who may be the one that lies."""
MOST_AT_ONCE = BY_ONE


@dataclass
class Refusals:
    """Points by (name, session) of the accused and who gave them. A message that must not count is one point; what
    keeps a round from ending is thirty, shared by those who see it, up to three; what keeps a pipeline's step from
    ending is thirty, for only the neighbour sees it."""

    _points: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    def of(self, name: str, session: str) -> int:
        """Points of a node's present life."""
        return sum(self._points.get((name, session), {}).values())

    def count(self, by: str, name: str, session: str, points: int) -> str:
        """``by`` refused something of ``name``. A sentence when that is enough to evict it, else empty."""
        given = self._points.setdefault((name, session), {})
        given[by] = given.get(by, 0) + max(1, min(points, MOST_AT_ONCE))
        total, members = sum(given.values()), len(given)
        if total < (BY_SEVERAL if members > 1 else BY_ONE):
            return ""
        del self._points[name, session]
        who = ", ".join(sorted(given))
        return f"what it sent was refused by {who} ({total} points, {BY_SEVERAL if members > 1 else BY_ONE} are enough)"
