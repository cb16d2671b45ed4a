"""Which vectors have an absurd norm, compared with the group's medians of this round and of recent ones.

Honest contributions to one part differ by small factors; an attacker's, to move the reference by force, would be orders
of magnitude longer. A contribution below the limit is averaged like any other: this is no robust aggregation. The limit
for gradients is larger: the gradient of a sample that the model has not learnt yet may be hundreds of times as long as
that of a memorised one, and in gradient mode the update is clipped before it is applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median_low

FACTOR = 100.0
"""The norm limit of updates, as a multiple of the median."""
GRADIENT_FACTOR = 1e4
"""The norm limit of one step's gradient, as a multiple of the median."""
_REMEMBERED = 20
_ENOUGH = 5


class Norms:
    """Recently accepted norms of each part: the medians over members, this node's own, and those of results."""

    def __init__(self, factor: float = FACTOR) -> None:
        self.factor = factor
        self._own: dict[int, deque[float]] = {}
        self._medians: dict[int, deque[float]] = {}
        self._results: dict[int, deque[float]] = {}

    def absurd(self, part: int, norms: Mapping[int, float], trusted: int) -> dict[int, float]:
        """Members (by index) whose norm is absurd, with their limit. ``trusted`` (this node itself) never is.

        Of two members the shorter norm is the median. Accepted norms are remembered, and so are this node's own: its
        samples are as typical as others', and no other node can influence them.
        """
        lately = self._medians.setdefault(part, deque(maxlen=_REMEMBERED))
        own = self._own.setdefault(part, deque(maxlen=_REMEMBERED))
        if trusted in norms:
            own.append(norms[trusted])
        limit = self.factor * max([median_low(norms.values()), *lately, *own]) if norms else 0.0
        found = {index: limit for index, norm in norms.items() if norm > limit > 0 and index != trusted}
        accepted = [norm for index, norm in norms.items() if index not in found]
        if accepted:
            lately.append(median_low(accepted))
        return found

    def absurd_result(self, part: int, norm: float, own: float) -> float:
        """The limit that a published result exceeds; 0 if its norm is plausible, which is then remembered.

        The norm is compared with those of earlier results and of this node's own contribution, ``own``: if all members'
        norms explode, the publisher is not at fault. The first results of a view are always accepted.
        """
        results = self._results.setdefault(part, deque(maxlen=_REMEMBERED))
        limit = self.factor * max(own, *results) if len(results) >= _ENOUGH else 0.0
        if norm > limit > 0:
            return limit
        results.append(norm)
        return 0.0
