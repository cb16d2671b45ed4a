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
    """(a + b, a - b), in place. The arguments are two slices, so that no index can wrap and the compiler vectorises."""
    for i in range(len(low)):
        a, b = low[i], high[i]
        low[i] = a + b
        high[i] = a - b


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def sixteen(_: Any, row: Any, start: Any) -> Any:
    """Four stages of fp32 row[start : start + 16] in registers, written in place: in each stage every value becomes the
    sum with its partner, or the partner minus it, as a + (-b), which equals a - b."""

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


LANES = 8


def _crossed(levels: int) -> Any:
    """An intrinsic that computes ``levels`` stages, of strides ``half``, 2 * half and so on, for 8 columns of fp32 from
    row[start] on, in registers, written in place. Each stage computes a + b and a - b, as ``halves``."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def crossed(_: Any, row: Any, start: Any, half: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            vector = ir.VectorType(ir.FloatType(), LANES)
            places, place = [], arguments[1]
            for _ in range(1 << levels):
                places.append(builder.bitcast(builder.gep(data, [place]), vector.as_pointer()))
                place = builder.add(place, arguments[2])
            values = [builder.load(place, align=4) for place in places]
            for level in range(levels):
                for low in range(1 << levels):
                    if not low >> level & 1:
                        a, b = values[low], values[low | 1 << level]
                        values[low], values[low | 1 << level] = builder.fadd(a, b), builder.fsub(a, b)
            for value, place in zip(values, places, strict=True):
                builder.store(value, place, align=4)
            return context.get_dummy_value()

        return types.void(row, types.int64, types.int64), generate

    return crossed


_one, _two, _three, _four = (_crossed(levels) for levels in (1, 2, 3, 4))


@jit
def higher(row: Any, half: int, size: int) -> None:
    """The stages of strides ``half`` (8 or more) to size / 2 of each ``size`` elements of fp32 ``row``, in place."""
    while half * 16 <= size:
        for first in range(0, len(row), 16 * half):
            for column in range(first, first + half, 8):
                _four(row, column, half)
        half *= 16
    if half * 8 <= size:
        for first in range(0, len(row), 8 * half):
            for column in range(first, first + half, 8):
                _three(row, column, half)
    elif half * 4 <= size:
        for first in range(0, len(row), 4 * half):
            for column in range(first, first + half, 8):
                _two(row, column, half)
    elif half * 2 <= size:
        for first in range(0, len(row), 2 * half):
            for column in range(first, first + half, 8):
                _one(row, column, half)


@jit
def hadamard(rows: Any) -> None:
    """In place, each row of fp32 ``[rows, 2^k]``; stages of stride 1, 2, 4, ..."""
    count, size = rows.shape
    for r in range(count):
        row = rows[r]
        if size >= 16:
            for start in range(0, size, 16):
                sixteen(row, start)
            higher(row, 16, size)
            continue
        half = 1
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
    """Pack uint8 codes of 1, 2, 4 or 8 bits as one plane of ``packing``. codes is padded with 0 to whole bytes."""
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
    """The inverse of ``pack``; codes has room for whole bytes."""
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
