"""The loops of codecs that decode by a table and a unit for each group: short floats, dithered levels, quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit, largest_bits
from .packing import planes, planes_back
from .random import dither

CHUNK = 4096
"""Elements at once, few enough for the L1 cache."""


@jit
def largest(x: Any, group: int, out: Any) -> None:
    """The int32 bits of the largest magnitude of each group of flat fp32 ``x``."""
    bits = x.view(np.int32)
    for g in range(len(out)):
        out[g] = largest_bits(bits[g * group : min(len(x), (g + 1) * group)], np.int32(0))


@jit
def add(out: Any, packed: Any, table: Any, units: Any, group: int, bits: int, weight: Any, adding: bool) -> None:
    """out = table[code] * unit, clamped to fp32's range, or out += that * weight."""
    most, count = np.float32(3.4028234663852886e38), len(out)
    codes = np.empty(CHUNK, np.uint8)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        planes_back(packed, bits, count, start, codes[: (size + 7) // 8 * 8])
        at = 0
        while at < size:
            g = (start + at) // group
            end = min(size, (g + 1) * group - start)
            unit, row, to = units[g], codes[at:end], out[start + at : start + end]
            if adding:
                for i in range(len(to)):
                    value = min(max(table[row[i]] * unit, -most), most)
                    to[i] += value * weight
            else:
                for i in range(len(to)):
                    to[i] = min(max(table[row[i]] * unit, -most), most)
            at = end


@jit
def scale(x: Any, start: int, group: int, dividing: bool, first: Any, second: Any, z: Any) -> None:
    """z = x / the group's ``first`` (0 if that is 0), or x * first * second, for elements from ``start`` on."""
    at, size = 0, len(z)
    while at < size:
        g = (start + at) // group
        end = min(size, (g + 1) * group - start)
        unit, row, to = first[g], x[start + at : start + end], z[at:end]
        if not dividing:
            other = second[g]
            for i in range(len(to)):
                to[i] = (row[i] * unit) * other
        elif unit > np.float32(0.0):
            for i in range(len(to)):
                to[i] = row[i] / unit
        else:
            for i in range(len(to)):
                to[i] = np.float32(0.0)
        at = end


@jit
def minifloat(
    x: Any, group: int, dividing: bool, first: Any, second: Any, mantissa: int, least: int, most: int,
    stochastic: bool, seed: Any, step: Any, bits: int, packed: Any,
) -> None:  # fmt: skip
    """Codes of ``Minifloat.round`` and a sign, packed. mantissa: its bits; least: the least exponent; most: the largest
    code."""
    magic, count = np.float32(12582912.0), len(x)  # adding and taking it away rounds to nearest even
    z, u = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32)
    power, codes = np.empty(CHUNK, np.int32), np.empty(CHUNK, np.uint8)
    words, gains = z.view(np.int32), power.view(np.float32)
    low, high, shift = np.int32(least), np.int32(least + 40), np.int32(mantissa)
    top, sign = np.int32(most), np.int32(bits - 1)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        scale(x, start, group, dividing, first, second, z[:size])
        if stochastic:
            dither(start, seed, step, 0, u[:size])
        for i in range(size):
            exponent = np.int32(np.int32(words[i] >> 23) & 255) - np.int32(127)
            exponent = min(max(exponent, low), high)
            power[i] = np.int32((shift - exponent + 127) << 23)
        for i in range(size):
            negative = np.int32(z[i] < np.float32(0.0))
            units = np.abs(z[i]) * gains[i]
            units = np.floor(units + u[i]) if stochastic else (units + magic) - magic
            exponent = shift + np.int32(127) - np.int32(power[i] >> 23)
            code = min(np.int32(((exponent - low) << shift) + np.int32(units)), top)
            codes[i] = np.uint8(code | (negative << sign))
        planes(codes[:size], bits, packed, count, start)


@jit
def edges(x: Any, group: int, units: Any, between: Any, bits: int, packed: Any) -> None:
    """How many of the rising edges between levels are below x / unit, packed."""
    count = len(x)
    z, codes = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.uint8)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        scale(x, start, group, True, units, units, z[:size])
        codes[:size] = 0
        for e in range(len(between)):
            edge = between[e]
            for i in range(size):
                codes[i] += z[i] > edge
        planes(codes[:size], bits, packed, count, start)
