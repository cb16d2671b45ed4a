"""Random rounding between the two levels of a table around a value, for all tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit


@jit
def between(
    y: Any, u: Any, lows: Any, gaps: Any, nexts: Any, cells: Any, origin: Any, scale: Any, place: Any, gap: Any,
    codes: Any,
) -> None:  # fmt: skip
    """uint8 ``codes``: the level at or below each fp32 ``y``, or the next one with a probability proportional to the
    distance; ``y`` is overwritten. lows: rising levels; gaps: differences to the next; nexts: the next level, infinity
    at the end. cells: for each of equal parts of the range from ``origin`` on (``scale`` parts per unit) a level that
    is surely not above it. place (int32), gap: buffers."""
    last = np.float32(len(cells) - 1)
    for i in range(len(y)):
        place[i] = np.int32(min(max((y[i] - origin) * scale, np.float32(0.0)), last))
    for i in range(len(y)):
        below = np.int32(cells[np.uint32(place[i])])
        below += np.int32(y[i] >= nexts[np.uint32(below)])
        while y[i] >= nexts[np.uint32(below)]:
            below += np.int32(1)
        codes[i] = np.uint8(below)
        y[i] -= lows[np.uint32(below)]
        gap[i] = gaps[np.uint32(below)]
    for i in range(len(y)):
        codes[i] += u[i] < y[i] / gap[i]


@jit
def mirrored(y: Any, u: Any, least: Any, edges: Any, highs: Any, centre: int, codes: Any) -> None:
    """As ``between``, in registers, for at most 8 steps on each side of 0 (or above the least level, if no ``y`` is
    below it); ``y`` stays. edges: fp32 ``[7]``, the upper ends of all steps but the last, then infinity; highs: fp32
    ``[8]``, the upper ends of the steps; least: the lower end of the first step, ``centre`` its code."""
    e0, e1, e2, e3, e4, e5, e6 = edges[0], edges[1], edges[2], edges[3], edges[4], edges[5], edges[6]
    h0, h1, h2, h3, h4, h5, h6, h7 = highs[0], highs[1], highs[2], highs[3], highs[4], highs[5], highs[6], highs[7]
    middle = np.int32(centre)
    for i in range(len(y)):
        size = np.abs(y[i])
        low, high, step = least, h0, np.int32(0)
        low, high, step = (h0, h1, np.int32(1)) if size >= e0 else (low, high, step)
        low, high, step = (h1, h2, np.int32(2)) if size >= e1 else (low, high, step)
        low, high, step = (h2, h3, np.int32(3)) if size >= e2 else (low, high, step)
        low, high, step = (h3, h4, np.int32(4)) if size >= e3 else (low, high, step)
        low, high, step = (h4, h5, np.int32(5)) if size >= e4 else (low, high, step)
        low, high, step = (h5, h6, np.int32(6)) if size >= e5 else (low, high, step)
        low, high, step = (h6, h7, np.int32(7)) if size >= e6 else (low, high, step)
        up = y[i] >= np.float32(0.0)
        rest, first = (size - low, np.int32(middle + step)) if up else (high - size, np.int32(middle - step))
        codes[i] = np.uint8(np.int32(first + np.int32(u[i] < rest / (high - low))))


@jit
def cells_mirrored(
    y: Any, u: Any, cells: Any, grid: int, least: Any, edges: Any, highs: Any, centre: int, codes: Any
) -> None:
    """As ``mirrored``, of whole levels symmetric about grid / 2: those of the upper half are in edges (int32) and highs
    (int32), least is the lower end of the step in the middle. cells: int32, the whole part of each fp32 ``y``."""
    e0, e1, e2, e3, e4, e5, e6 = edges[0], edges[1], edges[2], edges[3], edges[4], edges[5], edges[6]
    h0, h1, h2, h3, h4, h5, h6, h7 = highs[0], highs[1], highs[2], highs[3], highs[4], highs[5], highs[6], highs[7]
    middle, all_, half, last = np.int32(centre), np.int32(grid), np.int32((grid + 1) // 2), np.int32(grid - 1)
    for i in range(len(y)):
        up = cells[i] >= half
        size = cells[i] if up else np.int32(last - cells[i])
        low, high, step = least, h0, np.int32(0)
        low, high, step = (h0, h1, np.int32(1)) if size >= e0 else (low, high, step)
        low, high, step = (h1, h2, np.int32(2)) if size >= e1 else (low, high, step)
        low, high, step = (h2, h3, np.int32(3)) if size >= e2 else (low, high, step)
        low, high, step = (h3, h4, np.int32(4)) if size >= e3 else (low, high, step)
        low, high, step = (h4, h5, np.int32(5)) if size >= e4 else (low, high, step)
        low, high, step = (h5, h6, np.int32(6)) if size >= e5 else (low, high, step)
        low, high, step = (h6, h7, np.int32(7)) if size >= e6 else (low, high, step)
        below, first = (low, np.int32(middle + step)) if up else (np.int32(all_ - high), np.int32(middle - step))
        gap = np.float32(np.int32(high - low))
        codes[i] = np.uint8(np.int32(first + np.int32(u[i] < (y[i] - np.float32(below)) / gap)))
