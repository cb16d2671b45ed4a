"""Bottleneck matching: a perfect matching whose most expensive pair is as cheap as possible, and that pair's cost."""

from __future__ import annotations

import numpy

from ..networks.devices import Matrix


def bottleneck_matching(cost: Matrix, at_least: float = 0.0) -> tuple[float, numpy.ndarray]:
    """(bottleneck, partner) of a square cost matrix, float64 [k, k]: row i is matched to column partner[i].

    Binary search over the distinct costs with augmenting paths; no pair of the returned matching costs more than the
    bottleneck. at_least: a known lower bound, which saves steps.
    """
    values = numpy.unique(cost)
    # Each row and each column needs a partner, so the bottleneck is at least the largest of their cheapest costs.
    bound = max(float(cost.min(axis=1).max()), float(cost.min(axis=0).max()), at_least)
    low = int(numpy.searchsorted(values, bound))
    partner = perfect(cost <= values[low])
    if partner is not None:
        return float(values[low]), partner
    high = len(values) - 1
    best = numpy.arange(len(cost))
    while low + 1 < high:
        middle = (low + high) // 2
        partner = perfect(cost <= values[middle])
        if partner is None:
            low = middle
        else:
            best, high = partner, middle
    partner = perfect(cost <= values[high])
    return float(values[high]), best if partner is None else partner


def perfect(allowed: numpy.ndarray) -> numpy.ndarray | None:
    """A perfect matching of a square boolean matrix as partner[row] = column, or None if there is none."""
    count = len(allowed)
    edges = [int(sum(1 << int(column) for column in numpy.flatnonzero(row))) for row in allowed]
    owner = [-1] * count
    for start in range(count):
        if not _augment(start, edges, owner, count):
            return None
    partner = numpy.empty(count, dtype=numpy.int64)
    for column, row in enumerate(owner):
        partner[row] = column
    return partner


def _augment(start: int, edges: list[int], owner: list[int], count: int) -> bool:
    """Kuhn's augmenting path with bit sets, breadth first."""
    seen = 0
    queue = [start]
    came: dict[int, int] = {}
    for row in queue:
        fresh = edges[row] & ~seen
        while fresh:
            bit = fresh & -fresh
            fresh ^= bit
            seen |= bit
            column = bit.bit_length() - 1
            came[column] = row
            if owner[column] < 0:
                while True:
                    row = came[column]
                    previous = next((c for c in range(count) if owner[c] == row), -1)
                    owner[column] = row
                    if row == start:
                        return True
                    column = previous
            queue.append(owner[column])
    return False
