"""The loops behind ``fast``. Importing compiles nothing: each loop is compiled at its first call and kept in
numba's cache. ``fastmath`` is off: no sum is reordered, no product fused into a sum."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..kept import Kept

_numba: Any = numba


def jit(function: Any) -> Any:
    """Compiled at its first call, and kept on disk until the text of any loop changes."""
    compiled = _numba.njit(nogil=True, fastmath=False, error_model="numpy")(function)
    compiled._cache = Kept(function)
    return compiled


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


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def sixteen(_: Any, row: Any, start: Any) -> Any:
    """Four stages at once of fp32 row[start : start + 16], in place, in registers: stage by stage every value plus its
    partner, or the partner minus it, which is a + (-b) and so the same sum as a - b."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        vector, number = ir.VectorType(ir.FloatType(), 16), ir.IntType(32)
        place = builder.bitcast(builder.gep(data, [arguments[1]]), vector.as_pointer())
        value = builder.load(place, align=4)
        for half in (1, 2, 4, 8):
            other = ir.Constant(ir.VectorType(number, 16), [i ^ half for i in range(16)])
            partner = builder.shuffle_vector(value, ir.Constant(vector, ir.Undefined), other)
            upper = ir.Constant(ir.VectorType(ir.IntType(1), 16), [bool(i & half) for i in range(16)])
            value = builder.fadd(partner, builder.select(upper, builder.fneg(value), value))
        builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(row, types.int64), generate


@jit
def hadamard(rows: Any) -> None:
    """In place, each row of fp32 ``[rows, 2^k]``; stages of stride 1, 2, 4, ..."""
    count, size = rows.shape
    for r in range(count):
        row = rows[r]
        half = 1
        if size >= 16:
            for start in range(0, size, 16):
                sixteen(row, start)
            half = 16
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
    """uint8 codes of 1, 2, 4 or 8 bits, packed as one plane of ``packing``. codes has whole bytes' worth of them, 0
    where there are none."""
    if width == 8:
        for i in range(len(out)):  # a tenth of the time that numba takes for a slice
            out[i] = codes[i]
    elif width == 4:
        for i in range(len(out)):
            out[i] = codes[2 * i] | np.uint8(codes[2 * i + 1] << 4)
    elif width == 2:
        for i in range(len(out)):
            low = codes[4 * i] | np.uint8(codes[4 * i + 1] << 2)
            out[i] = low | np.uint8(codes[4 * i + 2] << 4) | np.uint8(codes[4 * i + 3] << 6)
    else:
        for i in range(len(out)):
            byte = codes[8 * i]
            for j in range(1, 8):
                byte |= np.uint8(codes[8 * i + j] << j)
            out[i] = byte


@jit
def unpack(packed: Any, width: int, codes: Any) -> None:
    """The inverse of ``pack``; codes has whole bytes' worth of room."""
    if width == 8:
        for i in range(len(packed)):
            codes[i] = packed[i]
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
