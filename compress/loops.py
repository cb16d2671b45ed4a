"""The loops behind ``fast``. Importing compiles nothing: each loop is compiled at its first call and kept in
numba's cache. ``fastmath`` is off: no sum is reordered, no product fused into a sum."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_numba: Any = numba


def jit(function: Any) -> Any:
    return _numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)


@jit
def halves(low: Any, high: Any) -> None:
    """(a + b, a - b), in place. Two slices, so that the compiler sees no index that could wrap, and vectorises."""
    for i in range(len(low)):
        a, b = low[i], high[i]
        low[i] = a + b
        high[i] = a - b


@jit
def eighths(part: Any) -> None:
    """Three stages at once of fp32 ``[8, width]``, in place: the same sums in the same order, fewer loads."""
    for i in range(part.shape[1]):
        a, b, c, d = part[0, i] + part[1, i], part[0, i] - part[1, i], part[2, i] + part[3, i], part[2, i] - part[3, i]
        e, f, h, k = part[4, i] + part[5, i], part[4, i] - part[5, i], part[6, i] + part[7, i], part[6, i] - part[7, i]
        a, c = a + c, a - c
        b, d = b + d, b - d
        e, h = e + h, e - h
        f, k = f + k, f - k
        part[0, i], part[4, i] = a + e, a - e
        part[1, i], part[5, i] = b + f, b - f
        part[2, i], part[6, i] = c + h, c - h
        part[3, i], part[7, i] = d + k, d - k


@jit
def hadamard(rows: Any) -> None:
    """In place, each row of fp32 ``[rows, 2^k]``; stages of stride 1, 2, 4, ..."""
    count, size = rows.shape
    for r in range(count):
        row = rows[r]
        half = 1
        if size >= 8:
            eights = row.reshape(size // 8, 8)
            for g in range(size // 8):
                part = eights[g]
                a, b, c, d = part[0] + part[1], part[0] - part[1], part[2] + part[3], part[2] - part[3]
                e, f, h, k = part[4] + part[5], part[4] - part[5], part[6] + part[7], part[6] - part[7]
                a, c = a + c, a - c
                b, d = b + d, b - d
                e, h = e + h, e - h
                f, k = f + k, f - k
                part[0], part[4] = a + e, a - e
                part[1], part[5] = b + f, b - f
                part[2], part[6] = c + h, c - h
                part[3], part[7] = d + k, d - k
            half = 8
        while half * 8 <= size:
            blocks = row.reshape(size // (8 * half), 8, half)
            for g in range(len(blocks)):
                eighths(blocks[g])
            half *= 8
        while half < size:
            for start in range(0, size, 2 * half):
                halves(row[start : start + half], row[start + half : start + 2 * half])
            half *= 2


@jit
def largest_bits(bits: Any, largest: Any) -> Any:
    """The larger of ``largest`` and all int32 ``bits`` without their sign. (numba widens integers: hence the casts.)"""
    for i in range(len(bits)):
        value = np.int32(bits[i] & 0x7FFFFFFF)
        if value > largest:
            largest = value
    return largest


@jit
def pack(codes: Any, width: int, out: Any) -> None:
    """uint8 codes of 1, 2, 4 or 8 bits, packed as one plane of ``packing``. codes has whole bytes' worth of them, 0 where
    there are none; of 1 bit, its length is a multiple of 8."""
    if width == 8:
        out[:] = codes[: len(out)]
    elif width == 4:
        for i in range(len(out)):
            out[i] = codes[2 * i] | np.uint8(codes[2 * i + 1] << 4)
    elif width == 2:
        for i in range(len(out)):
            low = codes[4 * i] | np.uint8(codes[4 * i + 1] << 2)
            out[i] = low | np.uint8(codes[4 * i + 2] << 4) | np.uint8(codes[4 * i + 3] << 6)
    else:
        words = codes.view(np.uint64)
        for i in range(len(out)):  # the product moves bit 0 of byte j to bit 56 + j
            out[i] = np.uint8((words[i] * np.uint64(0x0102040810204080)) >> np.uint64(56))


@jit
def unpack(packed: Any, width: int, codes: Any) -> None:
    """The inverse of ``pack``; codes has whole bytes' worth of room."""
    if width == 8:
        codes[: len(packed)] = packed
    elif width == 4:
        for i in range(len(packed)):
            codes[2 * i] = packed[i] & 15
            codes[2 * i + 1] = packed[i] >> 4
    elif width == 2:
        for i in range(len(packed)):
            codes[4 * i] = packed[i] & 3
            codes[4 * i + 1] = packed[i] >> 2 & 3
            codes[4 * i + 2] = packed[i] >> 4 & 3
            codes[4 * i + 3] = packed[i] >> 6
    else:
        for i in range(len(packed)):
            for j in range(8):
                codes[8 * i + j] = packed[i] >> j & 1


@jit
def nearest_levels(rows: Any, edges: Any, out: Any) -> None:
    """uint8 index of the nearest level of each value: how many of the rising ``edges`` are below it."""
    for r in range(rows.shape[0]):
        row, to = rows[r], out[r]
        for i in range(len(row)):
            to[i] = 0
        for e in range(len(edges)):
            edge = edges[e]
            for i in range(len(row)):
                to[i] += row[i] > edge


@jit
def eden_rows(rows: Any, words: Any, levels: Any, edges: Any, codes: Any, factors: Any) -> bool:
    """EDEN, unbiased, whole bits: uint8 codes and the factor of each row of ``[rows, 2^k]``, as ``Eden.write`` computes
    them; words: the Philox words of the signs. False if a row's largest value is denormal or beyond 2^125."""
    count, size = rows.shape
    turned, bits = np.empty(size, np.float32), np.empty(1, np.int32)
    for r in range(count):
        row = rows[r]
        field = largest_bits(row.view(np.int32), np.int32(0)) >> 23
        if field == 0 and not row.any():
            factors[r] = 0.0
            codes[r] = len(levels) // 2 - 1
            continue
        if field < 2 or field > 250:
            return False
        bits[0] = (253 - field) << 23
        scale = bits.view(np.float32)[0]
        energy = np.int64(0)
        for i in range(size):
            value = row[i] * scale
            fixed = np.int64(np.int32(value * np.float32(8388608.0)))
            energy += fixed * fixed
            turned[i] = value
        for i in range(0, size, 32):
            word = words[(r * size + i) >> 5]
            for j in range(32):
                turned[i + j] *= np.float32(1.0) - np.float32(2.0) * np.float32((word >> j) & 1)
        hadamard(turned.reshape(1, size))
        total = np.float64(energy) * 2.0**-46
        spread = np.float32(np.sqrt(total))
        to = codes[r]
        for i in range(size):
            to[i] = 0
        z = turned / spread
        for e in range(len(edges)):
            edge = edges[e]
            for i in range(size):
                to[i] += z[i] > edge
        product = np.int64(0)
        for i in range(size):
            fixed = np.int64(np.int32(turned[i] * np.float32(131072.0)))
            product += np.int64(np.int32(levels[to[i]] * np.float32(1048576.0))) * fixed
        below = np.float64(product) * 2.0**-37
        factor = np.float32(total / below) if product > 0 and energy > 0 else np.float32(0.0)
        bits[0] = (field + 1) << 23
        factors[r] = factor * bits.view(np.float32)[0]
    return True


@jit
def eden_back(codes: Any, words: Any, levels: Any, factors: Any, out: Any) -> None:
    """The decoded fp32 ``[rows, 2^k]`` of EDEN's codes, not yet clamped."""
    count, size = codes.shape
    for r in range(count):
        row = out[r]
        for i in range(size):
            row[i] = levels[codes[r, i]]
        hadamard(row.reshape(1, size))
        factor = factors[r]
        for i in range(0, size, 32):
            word = words[(r * size + i) >> 5]
            for j in range(32):
                row[i + j] *= np.float32(1.0) - np.float32(2.0) * np.float32((word >> j) & 1)
                row[i + j] *= factor
