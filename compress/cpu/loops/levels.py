"""Rounding at random between the two levels of a table around a value: one search for all tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit


@jit
def between(
    y: Any, u: Any, lows: Any, gaps: Any, nexts: Any, cells: Any, origin: Any, scale: Any, place: Any, gap: Any,
    codes: Any,
) -> None:  # fmt: skip
    """uint8 ``codes``: the level at or below each of fp32 ``y``, or with the chance of its distance the next; ``y`` is
    spoiled. lows: rising levels; gaps: to the next; nexts: the next, and infinity where there is none after it. cells:
    of each equal part of the range from ``origin`` on, ``scale`` parts to 1, a level that is surely not above it.
    place (int32), gap: room."""
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
