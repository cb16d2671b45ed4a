"""Which links are measured before there is a plan: all of a few nodes, a fixed number a node of many. Pure.

A plan of n nodes uses about one link a node and stage, and what training really gets over those is learnt while it
trains (link_rates.py). Measuring all n² would take a joiner as long as there are nodes. So beyond ALL nodes a joiner
measures LINKS of them: drawn by a hash of both names, so that no node is measured by much more than others, and a
node that comes back measures the same ones. What was not measured is estimated from what was (scheduler/guesses.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

ALL = 32
"""So many other nodes are measured each."""
LINKS = 16
"""Links that a node measures where there are more."""


def chosen(name: str, others: Iterable[str]) -> list[str]:
    """Which of ``others`` a node is to measure its links to, in their order."""
    names = list(others)
    if len(names) <= ALL:
        return names
    picked = set(sorted(names, key=lambda other: _order(name, other))[:LINKS])
    return [other for other in names if other in picked]


def _order(name: str, other: str) -> bytes:
    return hashlib.blake2b(f"{name}\0{other}".encode(), digest_size=8).digest()
