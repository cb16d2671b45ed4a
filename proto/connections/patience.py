"""Waiting by progress: wait while there is progress; act when there was none for the patience of the link.

This is one pure rule for all waits. The observed thing has a *mark*, a number that changes with progress: bytes that
have arrived, pieces of work that are done. The time since the beginning says nothing, because the amount of work is
unknown; the time without progress does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TRIPS = 5
"""Round trips within which a broken connection is open again: TCP and TLS take three, and one packet may be lost."""
SLOWER = 10
"""A link that carries less than its measured rate divided by this counts as broken."""
UNIT = 1 << 20
"""Granularity in bytes: the observer sees progress in steps of this size."""


def patience(least_s: float, round_trip_s: float = 0.0, rate_bps: float = 0.0, unit: int = UNIT) -> float:
    """Seconds without progress after which no more is expected; on a near link ``least_s``.

    round_trip_s, rate_bps: as measured; 0: not known. unit: bytes that must arrive for a mark to change.
    """
    carrying = SLOWER * 8.0 * unit / rate_bps if rate_bps > 0 else 0.0
    return max(least_s + TRIPS * round_trip_s, carrying)


@dataclass(frozen=True)
class Watch:
    """One wait. ``what``: words for it; ``since``: the time of the last progress, or of the beginning; ``patience_s``:
    the result of ``patience``."""

    what: str
    since: float
    patience_s: float
    mark: float = 0.0
    began: float = 0.0
    """When the wait began."""

    def at(self, mark: float, now: float) -> Watch:
        """The watch after ``mark`` was seen at ``now``."""
        return self if mark == self.mark else replace(self, mark=mark, since=now)

    def gives_up(self, now: float) -> str:
        """Why to stop waiting, as a sentence; empty: go on waiting."""
        stood = now - self.since
        return f"{self.what}: nothing has moved for {stood:.0f} s" if stood > self.patience_s else ""
