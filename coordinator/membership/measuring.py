"""Which links are measured before there is a plan: all of a few nodes, a fixed number a node of many. Pure.

A plan of n nodes uses about one link a node and stage, and what training really gets over those is learnt while it
trains (link_rates.py). Measuring all n² would take a joiner as long as there are nodes. So beyond ALL nodes a joiner
measures LINKS of them, drawn with its name as the seed, so that no node is measured by much more than others. What was
not measured is estimated from what was (scheduler/networks/guesses.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

ALL = 32
"""Other nodes to which each node measures its link."""
LINKS = 16
"""Links that a node measures where there are more."""


def chosen(name: str, others: Sequence[str]) -> list[str]:
    """Which of ``others`` a node is to measure its links to, in their order."""
    if len(others) <= ALL:
        return list(others)
    picked = random.Random(name).sample(range(len(others)), LINKS)
    return [others[at] for at in sorted(picked)]
