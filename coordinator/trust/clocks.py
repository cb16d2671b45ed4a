"""Clocks that are too far apart for certificates: each machine looks at its own when it checks one."""

from __future__ import annotations

from ...proto.errors import NotNow

LEAST_S = 60.0
"""Joins take seconds to arrive: less apart is no fault."""
BEHIND_S = 23 * 3600.0
"""Nodes' certificates begin a day before they are made."""


def check_clock(theirs: float, ours: float, life: float) -> None:
    """NotNow: certificates that last ``life`` seconds would not count on a machine whose clock is at ``theirs``.

    Both in seconds since the epoch; theirs 0: it did not say. A certificate is renewed after two thirds of its life, so
    a clock may be ahead by one.
    """
    ahead = theirs - ours
    if not theirs or -BEHIND_S < ahead < max(LEAST_S, life / 3):
        return
    way = f"{span(ahead)} ahead of" if ahead > 0 else f"{span(-ahead)} behind"
    raise NotNow(
        f"this machine's clock is {way} the coordinator's: certificates of the run would not count here",
        "set it (timedatectl set-ntp true), or the coordinator's where that is the wrong one, and join again",
    )


def span(seconds: float) -> str:
    """A time in the words of people: "2 days", "5 h"."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
