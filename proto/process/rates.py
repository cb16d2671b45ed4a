"""Rates as people read them, the same in what coordinators, nodes and commands say."""

from __future__ import annotations


def rate_text(bits_per_second: float) -> str:
    """20 Mbit/s."""
    for limit, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if abs(bits_per_second) >= limit:
            return f"{bits_per_second / limit:.3g} {unit}"
    return f"{bits_per_second:.0f} bit/s"
