"""How the rounds of gradient mode divide a section into parts: bucket by bucket, each shared by all publishers.

A backward pass completes gradients from the last layer to the first, and the parts of a bucket can travel when its
gradients are complete. If each publisher had one contiguous part of the whole section, the last layers' publisher alone
would receive first, and the first layers' alone at the end; so every bucket has a part for each publisher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 1 << 19
"""The least number of elements of a part. A smaller one would cost more in messages and calls than it hides."""
MOST = 12
"""The most buckets of a section."""
_TURN = (math.sqrt(5) - 1) / 2
"""The golden section, whose multiples are spread evenly over [0, 1) modulo 1, however many they are."""

Unit = tuple[int, int]
"""(first element, end) of the smallest range that is not divided."""


def buckets(units: Sequence[Unit], publishers: int) -> list[list[Unit]]:
    """Consecutive units as buckets of about the same size, each of them shared by so many publishers."""
    elements = units[-1][1] - units[0][0] if units else 0
    count = max(1, min(MOST, elements // (LEAST * max(2, publishers)), len(units)))
    found: list[list[Unit]] = [[] for _ in range(count)]
    for unit in units:
        found[min(count - 1, (sum(unit) // 2 - units[0][0]) * count // max(1, elements))].append(unit)
    return [bucket for bucket in found if bucket]


def place_in(unit: Unit, bucket: int) -> int:
    """The element of a unit at whose place in its bucket its publisher is looked up. It is another one in each bucket,
    evenly spread, so that publishers get their fractions of the section although a bucket has few units."""
    start, stop = unit
    return start + int((stop - start) * ((0.5 + bucket * _TURN) % 1.0))
