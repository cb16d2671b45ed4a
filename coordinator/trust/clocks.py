"""Detects clocks that differ too much for certificates, which each machine checks by its own clock."""

from __future__ import annotations

from ...proto.errors import NotNow

LEAST_S = 60.0
"""Seconds by which clocks may differ, because a join takes seconds to arrive."""
BEHIND_S = 23 * 3600.0
"""Nodes' certificates are valid from a day before they are made."""


def check_clock(theirs: float, ours: float, life: float) -> None:
    """Raise NotNow if certificates with a life of ``life`` seconds would be invalid on a machine whose clock is at
    ``theirs``.

    Both in seconds since the epoch; theirs 0: not reported. A certificate is renewed after two thirds of its life, so a
    clock may be ahead by one third.
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
    """A time for people: "2 days", "5 h"."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
