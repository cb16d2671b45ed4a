"""The loops of ``avq`` and ``docofl``: the best levels for a histogram, and random rounding between rising levels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit
from .packing import planes
from .random import dither

CHUNK = 2048
"""Elements at once, few enough for the L1 cache."""


@jit
def cost(values: Any, counts: Any, first: Any, second: Any, k: int, j: int) -> Any:
    """The total variance of random rounding of the values between the levels k and j."""
    whole = -values[j] * values[k] * (counts[j] - counts[k])
    middle = (values[j] + values[k]) * (first[j] - first[k])
    return (whole + middle) - (second[j] - second[k])


@jit
def layers(values: Any, counts: Any, first: Any, second: Any, choices: Any) -> None:
    """For ``adaptive.optimal_levels``: for each layer and each possible last level, the best level before it. Inputs
    are fp64, choices int64 ``[layers, m]``."""
    m = len(values)
    best, out, jobs = np.empty(m), np.empty(m), np.empty((m + 1, 4), np.int64)
    for j in range(m):
        best[j] = cost(values, counts, first, second, 0, j)
    for layer in range(len(choices)):
        choice = choices[layer]
        jobs[0] = 0
        jobs[0, 1], jobs[0, 3] = m - 1, m - 1
        waiting = 1
        while waiting:
            waiting -= 1
            low, high, left, right = jobs[waiting, 0], jobs[waiting, 1], jobs[waiting, 2], jobs[waiting, 3]
            middle = (low + high) // 2
            least, pick = np.inf, left
            for k in range(left, min(right, middle) + 1):
                value = best[k] + cost(values, counts, first, second, k, middle)
                if value < least:
                    least, pick = value, k
            out[middle], choice[middle] = least, pick
            if low < middle:
                jobs[waiting, 1], jobs[waiting, 3] = middle - 1, pick
                waiting += 1
            if middle < high:
                jobs[waiting, 0], jobs[waiting, 1] = middle + 1, high
                jobs[waiting, 2], jobs[waiting, 3] = pick, right
                waiting += 1
        best, out = out, best


@jit
def sixteen_below(y: Any, levels: Any, low: Any, high: Any, codes: Any) -> None:
    """codes: uint8, for each y the index of the last of the first 15 ``levels`` that is at or below it, 0 if none is;
    low, high: that level and the next. levels: 16, rising, filled up with infinity."""
    a, b, c, d, e, f, g, h = levels[0], levels[1], levels[2], levels[3], levels[4], levels[5], levels[6], levels[7]
    p, q, r, s, t, u = levels[8], levels[9], levels[10], levels[11], levels[12], levels[13]
    v, w = levels[14], levels[15]
    for i in range(len(y)):
        one = y[i]
        lower, upper, code = a, b, np.int32(0)
        lower, upper, code = (b, c, np.int32(1)) if one >= b else (lower, upper, code)
        lower, upper, code = (c, d, np.int32(2)) if one >= c else (lower, upper, code)
        lower, upper, code = (d, e, np.int32(3)) if one >= d else (lower, upper, code)
        lower, upper, code = (e, f, np.int32(4)) if one >= e else (lower, upper, code)
        lower, upper, code = (f, g, np.int32(5)) if one >= f else (lower, upper, code)
        lower, upper, code = (g, h, np.int32(6)) if one >= g else (lower, upper, code)
        lower, upper, code = (h, p, np.int32(7)) if one >= h else (lower, upper, code)
        lower, upper, code = (p, q, np.int32(8)) if one >= p else (lower, upper, code)
        lower, upper, code = (q, r, np.int32(9)) if one >= q else (lower, upper, code)
        lower, upper, code = (r, s, np.int32(10)) if one >= r else (lower, upper, code)
        lower, upper, code = (s, t, np.int32(11)) if one >= s else (lower, upper, code)
        lower, upper, code = (t, u, np.int32(12)) if one >= t else (lower, upper, code)
        lower, upper, code = (u, v, np.int32(13)) if one >= u else (lower, upper, code)
        lower, upper, code = (v, w, np.int32(14)) if one >= v else (lower, upper, code)
        low[i], high[i], codes[i] = lower, upper, np.uint8(code)


@jit
def searched(y: Any, levels: Any, low: Any, high: Any, codes: Any) -> None:
    """As ``sixteen_below``, for any number of levels from 2 on, by binary search."""
    last = len(levels) - 2
    for i in range(len(y)):
        least, most = 0, last
        while least < most:
            middle = (least + most + 1) // 2
            if y[i] >= levels[middle]:
                least = middle
            else:
                most = middle - 1
        low[i], high[i], codes[i] = levels[least], levels[least + 1], np.uint8(least)


@jit
def rounded(y: Any, levels: Any, bits: int, seed: Any, step: Any, packed: Any) -> None:
    """Packed codes of the level at or below each fp32 ``y``, or at random the next. levels: rising, at least 2; the
    first and the last are the least and the largest of ``y``."""
    u, codes = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.uint8)
    low, high, few = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32), np.empty(16, np.float32)
    last = len(levels) - 1
    if last < 16:
        few[:] = np.float32(np.inf)
        few[: last + 1] = levels
    for start in range(0, len(y), CHUNK):
        part = y[start : start + CHUNK]
        size = len(part)
        dither(start, seed, step, 0, u[:size])
        if last < 16:
            sixteen_below(part, few, low, high, codes)
            if last < 15:  # the largest value is a level that ends a step
                for i in range(size):
                    if codes[i] == last:
                        low[i], high[i], codes[i] = levels[last - 1], levels[last], np.uint8(last - 1)
        else:
            searched(part, levels, low, high, codes)
        for i in range(size):
            gap = np.float64(high[i]) - np.float64(low[i])
            codes[i] += np.float64(u[i]) < (np.float64(part[i]) - np.float64(low[i])) / gap
        planes(codes[:size], bits, packed, len(y), start)


@jit
def levels_of(x: Any, low: float, span: float, last: int, seed: Any, step: Any, codes: Any) -> None:
    """``docofl``'s levels, 0 to ``last``, of flat fp32 ``x``, at random, into uint8 or int32 ``codes``."""
    u, most = np.empty(CHUNK, np.float32), np.float64(last)
    for start in range(0, len(x), CHUNK):
        part, to = x[start : start + CHUNK], codes[start : start + CHUNK]
        dither(start, seed, step, 0, u[: len(part)])
        for i in range(len(part)):
            place = np.floor((np.float64(part[i]) - low) / span * most + np.float64(u[i]))
            to[i] = np.int32(min(max(place, 0.0), most))


@jit
def levels_back(upper: Any, lower: Any, plain: int, table: Any, weight: Any, adding: bool, out: Any) -> None:
    """out = the entries of fp32 ``table`` whose upper bits and ``plain`` lower ones are given, or += them * weight."""
    shift = np.int32(plain)
    for i in range(len(out)):
        value = table[np.uint32(np.int32(np.int32(upper[i]) << shift) | np.int32(lower[i]))]
        if adding:
            product = value * weight
            out[i] += product
        else:
            out[i] = value
