"""TurboQuant with the signs of its residual: a row is quantised and decoded, and the residual is rotated, while it is
in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import hadamard, jit
from ..packing import planes, planes_back
from .eden import factor_of, looked_up, quantized, turn_signs, turned_row

GAIN = float(np.sqrt(np.pi / 2))


@jit
def encode(
    rows: Any, words: Any, others: Any, levels: Any, edges: Any, cells: Any, bits: int, packed: Any, count: int,
    first: int, factors: Any, signs: Any, lengths: Any, length: int,
) -> bool:  # fmt: skip
    """As ``eden.encode`` with the norm as factor; then the packed signs and the lengths of what that leaves of fp32
    ``[rows, 2^k]``, turned by the signs in ``others``. Of 0 bits everything is left. length: of the rows' elements,
    which the last may have fewer of. False where the slow way is
    needed: the largest value of a row, or of what is left of it, is not finite, denormal or beyond 2^125."""
    size, most = rows.shape[1], np.float32(3.4028234663852886e38)
    turned, rest, one = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(1, np.int32)
    codes, back = np.empty(size, np.uint8), np.empty(size, np.float32)
    for r in range(rows.shape[0]):
        row = rows[r]
        if bits:
            field, energy = turned_row(row, words, r * size, turned)
            if field < 0:
                return False
            factor = np.float32(0.0)
            if field == 0:
                codes[:] = len(levels) // 2 - 1
                back[:] = np.float32(0.0)
            else:
                spread = np.float32(np.sqrt(np.float64(energy) * 2.0**-46))
                for i in range(size):
                    turned[i] /= spread
                quantized(turned, edges, cells, levels, codes, back)
                factor = factor_of(2, field, energy, np.int64(0), 0.0, size)
                hadamard(back.reshape(1, size))
                turn_signs(back.view(np.int32), words, r * size)
            planes(codes, bits, packed, count, first + r * size)
            factors[r] = factor
            for i in range(size):
                rest[i] = row[i] - min(max(back[i] * factor, -most), most)
        else:
            rest[:] = row
        rest[min(size, length - r * size) :] = np.float32(0.0)
        field, energy = turned_row(rest, others, r * size, turned)
        if field < 0:
            return False
        if field == 0:
            lengths[r] = np.float32(0.0)
            codes[:] = 1
        else:
            one[0] = (field + 1) << 23
            left = np.sqrt(np.float64(energy) * 2.0**-46) * GAIN / size
            lengths[r] = np.float32(left) * one.view(np.float32)[0]
            for i in range(size):
                codes[i] = turned[i] >= np.float32(0.0)
        planes(codes, 1, signs, count, first + r * size)
    return True


@jit
def decode(
    packed: Any, signs: Any, words: Any, others: Any, levels: Any, bits: int, count: int, first: int, factors: Any,
    lengths: Any, weight: Any, adding: bool, out: Any,
) -> None:  # fmt: skip
    """Fp32 ``[rows, 2^k]`` of the codes and signs of elements ``first`` on: ``out`` = decoded, or += decoded *
    weight."""
    size, most = out.shape[1], np.float32(3.4028234663852886e38)
    codes, turned, rest = np.empty(size, np.uint8), np.zeros(size, np.float32), np.empty(size, np.float32)
    for r in range(out.shape[0]):
        if bits:
            planes_back(packed, bits, count, first + r * size, codes)
            looked_up(codes, levels, turned)
            hadamard(turned.reshape(1, size))
            turn_signs(turned.view(np.int32), words, r * size)
            factor = factors[r]
            for i in range(size):
                turned[i] = min(max(turned[i] * factor, -most), most)
        planes_back(signs, 1, count, first + r * size, codes)
        for i in range(size):
            rest[i] = np.float32(1.0) if codes[i] else np.float32(-1.0)
        hadamard(rest.reshape(1, size))
        turn_signs(rest.view(np.int32), others, r * size)
        row, length = out[r], lengths[r]
        for i in range(size):
            part = rest[i] * length
            value = min(max(turned[i] + part, -most), most)
            if adding:
                row[i] += value * weight
            else:
                row[i] = value
