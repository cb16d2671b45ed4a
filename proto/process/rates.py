"""Rates as text for people, the same in messages of coordinator, nodes and commands."""

from __future__ import annotations


def rate_text(bits_per_second: float) -> str:
    """A rate as text, such as "20 Mbit/s"."""
    for limit, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if abs(bits_per_second) >= limit:
            return f"{bits_per_second / limit:.3g} {unit}"
    return f"{bits_per_second:.0f} bit/s"
