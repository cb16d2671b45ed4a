"""The cheapest open path through all groups: exact up to 14 of them, by 2-opt and Or-opt above."""

from __future__ import annotations

from functools import lru_cache

import numpy

from ..networks.devices import Matrix

EXACT = 14


@lru_cache(maxsize=16)
def _levels(count: int) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """For each number of visited groups: the sets as bit masks, int [sets], and each set without each of its members,
    int [sets, count]."""
    masks = numpy.arange(1 << count)
    sizes = numpy.zeros(1 << count, dtype=numpy.int64)
    for bit in range(count):
        sizes += (masks >> bit) & 1
    levels = []
    for size in range(2, count + 1):
        sets = masks[sizes == size]
        bits = 1 << numpy.arange(count)
        levels.append((sets, numpy.where(sets[:, None] & bits, sets[:, None] ^ bits, 0)))
    return levels


def held_karp(cost: Matrix) -> tuple[float, list[int]]:
    """(length, order) of the shortest path through all nodes, any start: one table for all starts.

    cost: float64 [p, p], symmetric or not; cost[i, j] is the step from i to j. p up to EXACT.
    """
    lengths, table = path_table(cost[None])
    count = len(cost)
    full = (1 << count) - 1
    last = int(table[0, full].argmin())
    order, mask = [last], full
    while len(order) < count:
        mask ^= 1 << last
        previous = table[0, mask] + cost[:, last]
        previous[[node for node in range(count) if not mask >> node & 1]] = numpy.inf
        last = int(previous.argmin())
        order.append(last)
    return float(lengths[0]), order[::-1]


def path_table(cost: Matrix) -> tuple[Matrix, Matrix]:
    """(lengths [b], table [b, 2^p, p]) for a batch of cost matrices, float64 [b, p, p].

    table[b, set, last] is the shortest path through the set that ends at `last` (Held and Karp 1962).
    """
    batch, count, _ = cost.shape
    table = numpy.full((batch, 1 << count, count), numpy.inf)
    for node in range(count):
        table[:, 1 << node, node] = 0.0
    for sets, without in _levels(count):
        # float64 [b, sets, last]: the shortest path through the set that arrives at `last`.
        for last in range(count):
            inside = without[:, last] > 0
            before = table[:, without[inside, last]]
            table[:, sets[inside], last] = (before + cost[:, None, :, last]).min(axis=2)
    return table[:, -1].min(axis=1), table


def short_path(cost: Matrix, start: list[int] | None = None) -> tuple[float, list[int]]:
    """(length, order): exact up to EXACT nodes; above, nearest neighbours improved by 2-opt and Or-opt until neither
    gains. 2-opt and Or-opt take the cost as symmetric."""
    count = len(cost)
    if count == 1:
        return 0.0, [0]
    if count <= EXACT:
        return held_karp(cost)
    symmetric = (cost + cost.T) / 2
    if start is None:
        best = min((_nearest(symmetric, node) for node in range(count)), key=lambda order: _length(symmetric, order))
    else:
        best = list(start)
    improved = True
    while improved:
        improved = _two_opt(symmetric, best) or _or_opt(symmetric, best)
    return _length(cost, best), best


def _length(cost: Matrix, order: list[int]) -> float:
    return float(cost[order[:-1], order[1:]].sum())


def _nearest(cost: Matrix, start: int) -> list[int]:
    order, left = [start], set(range(len(cost))) - {start}
    while left:
        order.append(min(left, key=lambda node: (cost[order[-1], node], node)))
        left.discard(order[-1])
    return order


def _two_opt(cost: Matrix, order: list[int]) -> bool:
    """Reverses the stretch whose reversal gains most; True if one did."""
    count = len(order)
    path = numpy.array(order)
    gain, where = 1e-12, None
    for first in range(count - 1):
        for last in range(first + 1, count):
            before = cost[path[first - 1], path[first]] if first else 0.0
            after = cost[path[last], path[last + 1]] if last + 1 < count else 0.0
            new_before = cost[path[first - 1], path[last]] if first else 0.0
            new_after = cost[path[first], path[last + 1]] if last + 1 < count else 0.0
            saved = before + after - new_before - new_after
            if saved > gain:
                gain, where = saved, (first, last)
    if where is None:
        return False
    first, last = where
    order[first : last + 1] = order[first : last + 1][::-1]
    return True


def _or_opt(cost: Matrix, order: list[int]) -> bool:
    """Moves a run of one to three nodes to where it fits best; True if one gained."""
    length = _length(cost, order)
    for size in (1, 2, 3):
        for at in range(len(order) - size + 1):
            run, rest = order[at : at + size], order[:at] + order[at + size :]
            for to in range(len(rest) + 1):
                for piece in (run, run[::-1]):
                    trial = rest[:to] + piece + rest[to:]
                    if _length(cost, trial) < length - 1e-12:
                        order[:] = trial
                        return True
    return False
