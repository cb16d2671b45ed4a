"""The loops behind ``fast``. Importing compiles nothing: each loop is compiled at its first call and kept in
numba's cache. ``fastmath`` is off: no sum is reordered, no product fused into a sum."""

from __future__ import annotations

from typing import Any

import numba

_numba: Any = numba


def jit(function: Any) -> Any:
    return _numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)


@jit
def hadamard(rows: Any) -> None:
    """In place, each row of fp32 ``[rows, 2^k]``; stages of stride 1, 2, 4, ..."""
    count, size = rows.shape
    for r in range(count):
        row = rows[r]
        half = 1
        if size >= 4:
            for i in range(0, size, 4):  # the first two stages at once: the same sums in the same order
                a, b, c, d = row[i], row[i + 1], row[i + 2], row[i + 3]
                e, f, g, h = a + b, a - b, c + d, c - d
                row[i], row[i + 1], row[i + 2], row[i + 3] = e + g, f + h, e - g, f - h
            half = 4
        while half < size:
            for start in range(0, size, 2 * half):
                for i in range(start, start + half):
                    a, b = row[i], row[i + half]
                    row[i] = a + b
                    row[i + half] = a - b
            half *= 2
