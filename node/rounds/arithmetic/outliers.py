"""Which vectors are absurdly long: a member's contribution against the group's median of this round and of recent ones.

Honest shares of one part differ by small factors; an attacker that wants to move the reference by force is longer by
orders of magnitude. Whoever stays below the limit is averaged like everybody else: this is no robust aggregation.
Gradients of a few samples differ by more than what many steps have moved: one sample that the model has not learnt yet
is hundreds of times as long as those that it knows by heart, and there an update is clipped before it is applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median_low

FACTOR = 100.0
"""Norm limit, in multiples of the median."""
GRADIENT_FACTOR = 1e4
"""The same for the gradient of one step."""
_REMEMBERED = 20
_ENOUGH = 5


class Norms:
    """Recently accepted norms of each part: medians over the members, this node's own, and those of results."""

    def __init__(self, factor: float = FACTOR) -> None:
        self.factor = factor
        self._own: dict[int, deque[float]] = {}
        self._medians: dict[int, deque[float]] = {}
        self._results: dict[int, deque[float]] = {}

    def absurd(self, part: int, norms: Mapping[int, float], trusted: int) -> dict[int, float]:
        """Members (by index) whose norm is absurd, with their limit. ``trusted`` (this node itself) never is.

        Of two members the shorter one is the median. What is accepted is remembered, and so is what this node sent: its
        samples are as good as another's, and nobody else can make it longer.
        """
        lately = self._medians.setdefault(part, deque(maxlen=_REMEMBERED))
        own = self._own.setdefault(part, deque(maxlen=_REMEMBERED))
        if trusted in norms:
            own.append(norms[trusted])
        limit = self.factor * max(median_low(norms.values()), *lately, *own) if norms else 0.0
        found = {index: limit for index, norm in norms.items() if norm > limit > 0 and index != trusted}
        accepted = [norm for index, norm in norms.items() if index not in found]
        if accepted:
            lately.append(median_low(accepted))
        return found

    def absurd_result(self, part: int, norm: float, own: float) -> float:
        """The limit that a published result exceeds, 0 where it is plausible; then it is remembered.

        It is held against the results before and what this node sent itself, ``own``: when everybody's numbers blow
        up, that is no publisher's lie. The first results of a view have nothing to be held against.
        """
        results = self._results.setdefault(part, deque(maxlen=_REMEMBERED))
        limit = self.factor * max(own, *results) if len(results) >= _ENOUGH else 0.0
        if norm > limit > 0:
            return limit
        results.append(norm)
        return 0.0
