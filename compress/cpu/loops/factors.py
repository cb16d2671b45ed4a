"""The loops that decode sums of products: two thin factors (PowerSGD), cosines (DeMo)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit

CHUNK = 2048


@jit
def product(p: Any, q: Any, weight: Any, adding: bool, out: Any) -> None:
    """The first len(out) elements of the sum of p[:, k] q[k, :] in the order of k, clamped to fp32's range; ``out`` =
    those, or += those * weight."""
    most, row = np.float32(3.4028234663852886e38), np.empty(CHUNK, np.float32)
    rank, columns = q.shape
    for i in range(len(p)):
        line = out[i * columns : min(len(out), (i + 1) * columns)]
        for start in range(0, len(line), CHUNK):
            to = line[start : start + CHUNK]
            for j in range(len(to)):
                row[j] = np.float32(0.0)
            for k in range(rank):
                left, right = p[i, k], q[k, start : start + len(to)]
                for j in range(len(to)):
                    term = left * right[j]
                    row[j] += term
            if adding:
                for j in range(len(to)):
                    value = min(max(row[j], -most), most)
                    to[j] += value * weight
            else:
                for j in range(len(to)):
                    to[j] = min(max(row[j], -most), most)


@jit
def cosines(index: Any, sizes: Any, basis: Any, weight: Any, adding: bool, out: Any) -> None:
    """Tiles of 64 x 64, each the sum, in order, of ``sizes`` ``[tiles, k]`` times two rows of the ``basis``, which
    ``index`` ``[tiles, k]`` names; clamped to fp32's range; ``out`` = them, or += them * weight."""
    most, side = np.float32(3.4028234663852886e38), 64
    line, lefts = np.empty(side, np.float32), np.empty((side, index.shape[1]), np.float32)
    for t in range(len(index)):
        for k in range(index.shape[1]):
            left, size = basis[index[t, k] // side], sizes[t, k]
            for i in range(side):
                lefts[i, k] = left[i] * size
        for i in range(side):
            start = (t * side + i) * side
            to = out[start : start + side]
            if len(to) == 0:
                break
            for j in range(side):
                line[j] = np.float32(0.0)
            for k in range(index.shape[1]):
                factor, right = lefts[i, k], basis[index[t, k] % side]
                for j in range(side):
                    term = factor * right[j]
                    line[j] += term
            if adding:
                for j in range(len(to)):
                    value = min(max(line[j], -most), most)
                    to[j] += value * weight
            else:
                for j in range(len(to)):
                    to[j] = min(max(line[j], -most), most)
