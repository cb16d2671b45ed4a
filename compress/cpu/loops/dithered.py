"""One pass for all codecs that round each element at random: scale x, draw a uniform number, make a code, pack it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit, pack
from .packing import planes
from .random import dither
from .tables import scale

CHUNK = 2560
"""Elements at once: they stay in the first cache, and are whole tiles of Philox, bytes and fives."""
EQUAL, POWERS, TERNARY, NATURAL, EXPONENTS, WHOLE = range(6)


@jit
def equal(z: Any, u: Any, levels: Any, offset: Any, codes: Any) -> None:
    """offset + the level of z in [-1, 1], rounded at random; there are ``levels`` levels on each side."""
    for i in range(len(z)):
        level = min(np.floor(np.abs(z[i]) * levels + u[i]), levels)
        level = -level if z[i] < np.float32(0.0) else level
        codes[i] = np.uint8(np.int32(level + offset))


@jit
def powers(z: Any, u: Any, bits: int, low: Any, codes: Any) -> None:
    """The power of two below |z|, for z in [-1, 1], or the next, at random, and a sign. low: an int32 buffer as
    long."""
    words, lows = z.view(np.int32), low.view(np.float32)
    most = np.int32((1 << (bits - 1)) - 1)
    lowest, sign = np.int32(1) - most, np.int32(bits - 1)
    one = np.empty(1, np.int32)
    one[0] = np.int32((lowest + 127) << 23)
    least = one.view(np.float32)[0]
    for i in range(len(z)):
        low[i] = np.int32(words[i] & 0x7F800000)
    for i in range(len(z)):
        a = np.abs(z[i])
        small = a < least
        index = np.int32(0) if small else np.int32(np.int32(low[i] >> 23) - np.int32(126) - lowest)
        gap = least if small else lows[i]
        rest = a if small else a - lows[i]
        index = min(np.int32(index + np.int32(u[i] < rest / gap)), most)
        codes[i] = np.uint8(index | np.int32(np.int32(z[i] < np.float32(0.0)) << sign))


@jit
def ternary(z: Any, u: Any, codes: Any, out: Any) -> None:
    """0, 1 or 2, at random, for z in [-1, 1]; five of them to a byte of ``out``."""
    for i in range(len(z)):
        side = np.uint8(0) if z[i] < np.float32(0.0) else np.uint8(2)
        codes[i] = side if u[i] < np.abs(z[i]) else np.uint8(1)
    for i in range(len(z), 5 * len(out)):
        codes[i] = 1
    for i in range(len(out)):
        low = codes[5 * i] + np.uint8(3) * codes[5 * i + 1] + np.uint8(9) * codes[5 * i + 2]
        out[i] = np.uint8(low + np.uint8(27) * codes[5 * i + 3] + np.uint8(81) * codes[5 * i + 4])


@jit
def natural(x: Any, u: Any, codes: Any, signs: Any) -> None:
    """The exponent of x or the next, at random, and whether x is below zero, as uint8 each."""
    words = x.view(np.int32)
    for i in range(len(x)):
        noise = np.int32(u[i] * np.float32(8388608.0))
        bits = np.int32(np.int32(words[i] & 0x7FFFFFFF) + noise)
        codes[i] = np.uint8(min(np.int32(bits >> 23), np.int32(254)))
        signs[i] = x[i] < np.float32(0.0)


@jit
def exponents(z: Any, u: Any, range_: Any, low: Any, codes: Any) -> None:
    """The negated exponent, rounded at random, of z / ``range_`` for z in [-1, 1] (0 for zero), and a sign. low: a
    buffer."""
    up, reals = np.float32(18446744073709551616.0), low.view(np.float32)  # 2^64: no number is denormal then
    for i in range(len(z)):
        reals[i] = (np.abs(z[i]) / range_) * up
    for i in range(len(z)):
        fraction = np.float32(np.int32(low[i] & 0x7FFFFF)) * np.float32(1.1920928955078125e-07)
        code = np.int32(np.int32(190) - np.int32(low[i] >> 23)) + np.int32(u[i] >= fraction)
        code = max(np.int32(code), np.int32(1))
        code = np.int32(0) if code > 127 else code
        side = np.int32(128) if z[i] < np.float32(0.0) and code > 0 else np.int32(0)
        codes[i] = np.uint8(code | side)


@jit
def whole(x: Any, u: Any, alpha: float, codes: Any) -> None:
    """127 + x * alpha (fp64) rounded at random to an integer and clamped to [-127, 127]."""
    for i in range(len(x)):
        level = np.floor(np.float64(x[i]) * alpha + np.float64(u[i]))
        codes[i] = np.uint8(np.int32(min(max(level, -127.0), 127.0) + 127.0))


@jit
def dithered(
    x: Any, group: int, units: Any, kind: int, number: float, bits: int, seed: Any, step: Any, packed: Any
) -> None:
    """Codes of flat fp32 ``x``, which most kinds take as parts of ``units``, one of each ``group``. number: the offset
    of EQUAL, the range of EXPONENTS, the factor of WHOLE."""
    count, levels = len(x), np.float32((1 << (bits - 1)) - 1)
    z, u, low = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32), np.empty(CHUNK, np.int32)
    codes, flags = np.zeros(CHUNK + 8, np.uint8), np.zeros(CHUNK, np.uint8)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        part = x[start : start + size]
        if kind < NATURAL or kind == EXPONENTS:
            scale(x, start, group, True, units, units, z[:size])
        dither(start, seed, step, 0, u[:size])
        if kind == EQUAL:
            equal(z[:size], u, levels, np.float32(number), codes)
        elif kind == POWERS:
            powers(z[:size], u, bits, low, codes)
        elif kind == EXPONENTS:
            exponents(z[:size], u, np.float32(number), low, codes)
        elif kind == WHOLE:
            whole(part, u, number, codes)
        if kind == TERNARY:
            ternary(z[:size], u, codes, packed[start // 5 : (start + size + 4) // 5])
        elif kind == NATURAL:
            natural(part, u, packed[start : start + size], flags)
            for i in range(size, (size + 7) // 8 * 8):
                flags[i] = 0
            bytes_ = packed[count + start // 8 : count + (start + size + 7) // 8]
            pack(flags, 1, bytes_)
        else:
            planes(codes[:size], bits, packed, count, start)


@jit
def natural_back(packed: Any, weight: Any, adding: bool, out: Any) -> None:
    """Exponents and signs, decoded into ``out``, or with a weight added to it."""
    count = len(out)
    bits = np.empty(CHUNK, np.int32)
    values = bits.view(np.float32)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        row, to = packed[start : start + size], out[start : start + size]
        flags = packed[count + start // 8 : count + (start + size + 7) // 8]
        for i in range(len(flags)):
            word = np.int32(flags[i])
            for j in range(8):
                bits[8 * i + j] = np.int32(word << (31 - j)) & np.int32(-0x80000000)
        for i in range(size):
            bits[i] = np.int32(bits[i] | np.int32(np.int32(row[i]) << 23))
        if adding:
            for i in range(size):
                product = values[i] * weight
                to[i] += product
        else:
            for i in range(size):
                to[i] = values[i]


@jit
def ternary_back(packed: Any, table: Any, weight: Any, adding: bool, out: Any) -> None:
    """Bytes of five, decoded by fp32 ``table`` ``[243, 8]`` into ``out`` or added to it with a weight."""
    values = np.empty(CHUNK + 8, np.float32)
    for start in range(0, len(out), CHUNK):
        to = out[start : start + CHUNK]
        row = packed[start // 5 : (start + len(to) + 4) // 5]
        for i in range(len(row)):
            five = table[row[i]]
            for j in range(8):  # a whole register: three values too many, which the next overwrites
                values[5 * i + j] = five[j]
        if adding:
            for i in range(len(to)):
                product = values[i] * weight
                to[i] += product
        else:
            for i in range(len(to)):
                to[i] = values[i]
