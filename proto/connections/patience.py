"""Waiting by progress: while something moves, wait; when nothing has moved for the patience of the link, act.

One pure rule for whatever is waited for. What is watched has a *mark*, a number that changes when something moves:
bytes that have arrived, pieces of work that are done. No number of seconds since the beginning says anything, because
nobody knows how much has to move; seconds in which nothing moved do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TRIPS = 5
"""Round trips in which a broken connection is there again: TCP and TLS take three, and one more is lost."""
SLOWER = 10
"""A link that carries less than one part in so many of its measured rate carries nothing."""
UNIT = 1 << 20
"""Bytes that move at once, as far as whoever looks can see."""


def patience(least_s: float, round_trip_s: float = 0.0, rate_bps: float = 0.0, unit: int = UNIT) -> float:
    """Seconds in which nothing moves, after which nothing will: ``least_s`` on a near link.

    round_trip_s, rate_bps: as measured, 0 where they are not known. unit: bytes that have to come for a mark to change.
    """
    carrying = SLOWER * 8.0 * unit / rate_bps if rate_bps > 0 else 0.0
    return max(least_s + TRIPS * round_trip_s, carrying)


@dataclass(frozen=True)
class Watch:
    """Something that is waited for. ``since``: when it moved last, or began; ``patience_s``: as of ``patience``."""

    what: str
    since: float
    patience_s: float
    mark: float = 0.0
    began: float = 0.0
    """When it was waited for first."""

    def at(self, mark: float, now: float) -> Watch:
        """With the mark that is seen now."""
        return self if mark == self.mark else replace(self, mark=mark, since=now)

    def gives_up(self, now: float) -> str:
        """Why not to wait any longer, as a sentence; empty: wait."""
        stood = now - self.since
        return f"{self.what}: nothing has moved for {stood:.0f} s" if stood > self.patience_s else ""
