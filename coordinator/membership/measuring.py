"""Which links are measured before there is a plan: all of them between few nodes; a fixed number for each of many.
Pure.

A plan of n nodes uses about one link a node and stage, and training itself shows these links' rates (link_rates.py). If
all n² links were measured, a joiner's time would grow with the number of nodes. So beyond ALL nodes a joiner measures
LINKS links, drawn with its name as the seed, so that no node takes part in far more measurements than others. The other
links are estimated from the measured ones (scheduler/networks/guesses.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

ALL = 32
"""Up to this many other nodes, each node measures its links to all of them."""
LINKS = 16
"""Links that a node measures where there are more nodes."""


def chosen(name: str, others: Sequence[str]) -> list[str]:
    """The nodes of ``others`` to which a node measures its links, in their order."""
    if len(others) <= ALL:
        return list(others)
    picked = random.Random(name).sample(range(len(others)), LINKS)
    return [others[at] for at in sorted(picked)]
