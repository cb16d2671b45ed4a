"""Compiled annealing, one swap at a time: a swap costs a few sums over the pipelines. timing/compiled.py decides when
it is used.

Importing compiles nothing: each loop is compiled at its first call and kept in numba's cache.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy

_numba: Any = numba


def jit(function: Any) -> Any:
    return _numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)


@jit
def draw(state: Any) -> Any:
    """The next number of xorshift64* (Vigna 2016), in [0, 1). state: uint64 [1], changed in place."""
    x = state[0]
    x ^= x >> _numba.uint64(12)
    x ^= x << _numba.uint64(25)
    x ^= x >> _numba.uint64(27)
    state[0] = x
    return _numba.float64((x * _numba.uint64(2685821657736338717)) >> _numba.uint64(11)) / 9007199254740992.0


@jit
def hop(pipe: Any, places: Any, stage: Any, rows: Any) -> Any:
    """(largest, sum) of w_pp over the pipelines' pairs between `stage` and the next one."""
    most, total = 0.0, 0.0
    for row in range(rows):
        value = pipe[places[row, stage], places[row, stage + 1]]
        total += value
        if value > most:
            most = value
    return most, total


@jit
def group(data: Any, places: Any, stage: Any, rows: Any, sums: Any) -> Any:
    """(largest, sum) over a group's members of each one's sum of 2 w_dp to the others; the sums are written into
    `sums`."""
    most, total = 0.0, 0.0
    for row in range(rows):
        value = 0.0
        for other in range(rows):
            value += data[places[row, stage], places[other, stage]]
        sums[stage, row] = value
        total += value
        if value > most:
            most = value
    return most, total


@jit
def exchanged(data: Any, places: Any, stage: Any, rows: Any, sums: Any, gone: Any, row: Any, come: Any) -> Any:
    """The same with the device ``come`` in place of ``gone`` in one row; changes no argument."""
    own, most, total = 0.0, 0.0, 0.0
    for other in range(rows):
        if other != row:
            device = places[other, stage]
            own += data[come, device]
            value = sums[stage, other] - data[device, gone] + data[device, come]
            total += value
            if value > most:
                most = value
    total += own
    if own > most:
        most = own
    return most, total


@jit
def total(tops: Any, means: Any, hops: Any, lengths: Any, rows: Any, stages: Any, slope: Any) -> Any:
    """(the published cost, the cost plus `slope` times the means, which the search minimises)."""
    most, mean, path, length = 0.0, 0.0, 0.0, 0.0
    for stage in range(stages):
        if tops[stage] > most:
            most = tops[stage]
        mean += means[stage]
        path += hops[stage]
        length += lengths[stage]
    real = most + 2 * path
    return real, real + slope * (mean / (rows * stages) + 2 * length / rows)


@jit
def anneal_published(
    data: Any, pipe: Any, places: Any, spare: Any, moves: Any, hot: Any, cold: Any, slope: Any, seed: Any
) -> Any:
    """Anneals pipelines for the published cost: the largest member's sum of the slowest group, plus twice the sum over
    hops of the slowest pair. Leaves the best placement seen in ``places`` and ``spare``, and returns its cost.

    data, pipe: float64 [n, n]. places: int64 [pipelines, stages]; spare: int64 [m]. hot, cold: temperatures of the
    first and the last move. slope: weight of the means that are added to the maxima.
    """
    rows, stages = places.shape
    slots, size = rows * stages, rows * stages + len(spare)
    random = numpy.empty(1, numpy.uint64)
    random[0] = _numba.uint64(seed) * _numba.uint64(2654435769) + _numba.uint64(88172645463325252)
    sums, tops, means = numpy.zeros((stages, rows)), numpy.zeros(stages), numpy.zeros(stages)
    hops, lengths = numpy.zeros(stages), numpy.zeros(stages)
    for stage in range(stages):
        tops[stage], means[stage] = group(data, places, stage, rows, sums)
        if stage + 1 < stages:
            hops[stage], lengths[stage] = hop(pipe, places, stage, rows)
    real, smooth = total(tops, means, hops, lengths, rows, stages, slope)
    best, kept, kept_spare = real, places.copy(), spare.copy()
    temperature, factor = hot, (cold / hot) ** (1.0 / max(moves, 1))
    for _ in range(moves):
        temperature *= factor
        chance = draw(random)
        one = int(draw(random) * slots)
        if chance < 0.25:  # the member that its group waits for
            stage = 0
            for other in range(stages):
                if tops[other] > tops[stage]:
                    stage = other
            row = 0
            for other in range(rows):
                if sums[stage, other] > sums[stage, row]:
                    row = other
            one = row * stages + stage
        elif chance < 0.5 and stages > 1:  # an end of the pair that a hop waits for
            stage = int(draw(random) * (stages - 1))
            row = 0
            for other in range(rows):
                if (
                    pipe[places[other, stage], places[other, stage + 1]]
                    > pipe[places[row, stage], places[row, stage + 1]]
                ):
                    row = other
            one = row * stages + stage + int(draw(random) * 2)
        two = int(draw(random) * size)
        if chance > 0.8:  # another row of the same stage: the groups stay, the pipelines change
            two = int(draw(random) * rows) * stages + one % stages
        if one == two:
            continue
        row_a, stage_a = one // stages, one % stages
        first = places[row_a, stage_a]
        outside = two >= slots
        row_b, stage_b = (0, -9) if outside else (two // stages, two % stages)
        second = spare[two - slots] if outside else places[row_b, stage_b]
        top_a, mean_a, top_b, mean_b = tops[stage_a], means[stage_a], 0.0, 0.0
        if stage_a != stage_b:
            top_a, mean_a = exchanged(data, places, stage_a, rows, sums, first, row_a, second)
            if not outside:
                top_b, mean_b = exchanged(data, places, stage_b, rows, sums, second, row_b, first)
        places[row_a, stage_a] = second
        if not outside:
            places[row_b, stage_b] = first
        old_a, old_mean_a = tops[stage_a], means[stage_a]
        tops[stage_a], means[stage_a] = top_a, mean_a
        old_b, old_mean_b = 0.0, 0.0
        if not outside and stage_a != stage_b:
            old_b, old_mean_b = tops[stage_b], means[stage_b]
            tops[stage_b], means[stage_b] = top_b, mean_b
        # At most four hops: before and after each of the two.
        h0, h1, h2, h3 = stage_a - 1, stage_a, stage_b - 1, stage_b
        if h2 in (h0, h1):
            h2 = -9
        if h3 in (h0, h1):
            h3 = -9
        o0, o1, o2, o3, l0, l1, l2, l3 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        if h0 >= 0:
            o0, l0 = hops[h0], lengths[h0]
            hops[h0], lengths[h0] = hop(pipe, places, h0, rows)
        if h1 < stages - 1:
            o1, l1 = hops[h1], lengths[h1]
            hops[h1], lengths[h1] = hop(pipe, places, h1, rows)
        if h2 >= 0:
            o2, l2 = hops[h2], lengths[h2]
            hops[h2], lengths[h2] = hop(pipe, places, h2, rows)
        if 0 <= h3 < stages - 1:
            o3, l3 = hops[h3], lengths[h3]
            hops[h3], lengths[h3] = hop(pipe, places, h3, rows)
        new_real, new_smooth = total(tops, means, hops, lengths, rows, stages, slope)
        if new_smooth <= smooth or draw(random) < math.exp((smooth - new_smooth) / temperature):
            real, smooth = new_real, new_smooth
            if outside:
                spare[two - slots] = first
            if stage_a != stage_b:
                group(data, places, stage_a, rows, sums)
                if not outside:
                    group(data, places, stage_b, rows, sums)
            else:
                sums[stage_a, row_a], sums[stage_a, row_b] = sums[stage_a, row_b], sums[stage_a, row_a]
            if real < best:
                best = real
                kept[:, :] = places
                kept_spare[:] = spare
            continue
        places[row_a, stage_a] = first
        if not outside:
            places[row_b, stage_b] = second
        tops[stage_a], means[stage_a] = old_a, old_mean_a
        if not outside and stage_a != stage_b:
            tops[stage_b], means[stage_b] = old_b, old_mean_b
        if h0 >= 0:
            hops[h0], lengths[h0] = o0, l0
        if h1 < stages - 1:
            hops[h1], lengths[h1] = o1, l1
        if h2 >= 0:
            hops[h2], lengths[h2] = o2, l2
        if 0 <= h3 < stages - 1:
            hops[h3], lengths[h3] = o3, l3
    places[:, :] = kept
    spare[:] = kept_spare
    return best
