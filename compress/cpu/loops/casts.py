"""The loops of plain and cast values: fp32, fp16 and bf16 bytes at any address, written as fp32 or added to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .base import jit

_AT_ONCE = 4096
"""Elements at once, few enough for the L1 cache."""


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def half(_: Any, word: Any) -> Any:
    """The fp32 value of fp16 bits, by integer operations and one exact subtraction: for a processor without the
    conversion (NUMBA_CPU_NAME=generic), LLVM would call a function that numba lacks, and the process would crash."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, real = ir.IntType(32), ir.FloatType()

        def whole(value: int) -> Any:
            return ir.Constant(number, value)

        word = builder.zext(arguments[0], number)
        sign = builder.shl(builder.and_(word, whole(0x8000)), whole(16))
        size = builder.shl(builder.and_(word, whole(0x7FFF)), whole(13))  # fp16's fields where fp32 has its own
        normal = builder.add(size, whole(112 << 23))  # the difference of the biases
        beyond = builder.icmp_unsigned(">=", size, whole(31 << 23))
        normal = builder.select(beyond, builder.add(normal, whole(112 << 23)), normal)  # infinite, or not a number
        least = whole(113 << 23)  # the bits of 2^-14, the least normal half
        small = builder.fsub(builder.bitcast(builder.add(size, least), real), builder.bitcast(least, real))
        tiny = builder.icmp_unsigned("<", size, whole(1 << 23))
        bits = builder.select(tiny, builder.bitcast(small, number), normal)
        return builder.bitcast(builder.or_(bits, sign), real)

    return types.float32(types.uint16), generate


@jit
def widen(raw: Any, start: int, kind: int, short: Any, wide: Any) -> None:
    """Fill fp32 ``wide`` from the bytes of elements ``start`` on. kind: 32 for fp32, 16 for fp16, 8 for bf16."""
    size = 4 if kind == 32 else 2
    source = raw[size * start : size * (start + len(wide))]
    to = wide.view(np.uint8) if kind == 32 else short
    for i in range(len(source)):  # bytewise: the source may be unaligned, a view of values must be aligned
        to[i] = source[i]
    words, bits = short.view(np.uint16), wide.view(np.uint32)
    if kind == 16:
        for i in range(len(wide)):
            wide[i] = half(words[i])
    elif kind == 8:
        for i in range(len(wide)):
            bits[i] = np.uint32(words[i]) << np.uint32(16)


@jit
def add(out: Any, raw: Any, kind: int, weight: Any, adding: bool) -> None:
    """out = value, or out += value * weight."""
    short, wide = np.empty(2 * _AT_ONCE, np.uint8), np.empty(_AT_ONCE, np.float32)
    for start in range(0, len(out), _AT_ONCE):
        to = out[start : start + _AT_ONCE]
        values = wide[: len(to)]
        widen(raw, start, kind, short, values)
        if adding:
            for i in range(len(to)):
                product = values[i] * weight
                to[i] += product
        else:
            for i in range(len(to)):
                to[i] = values[i]


@jit
def squares(raw: Any, count: int, kind: int) -> float:
    """The sum of the squares of ``count`` values; not finite if one is not, or its square beyond fp32."""
    short, wide = np.empty(2 * _AT_ONCE, np.uint8), np.empty(_AT_ONCE, np.float32)
    sums = np.zeros(_AT_ONCE, np.float32)
    for start in range(0, count, _AT_ONCE):
        values = wide[: min(_AT_ONCE, count - start)]
        widen(raw, start, kind, short, values)
        for i in range(len(values)):
            sums[i] += values[i] * values[i]
    total = 0.0
    for i in range(_AT_ONCE):
        total += np.float64(sums[i])
    return total
