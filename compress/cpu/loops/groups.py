"""The loops of the group quantisers: a step per group, levels of a few bits, packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit, largest_bits, pack, unpack
from .random import dither


@jit
def chunk_of(group: int) -> int:
    """Elements at once, which stay in the cache: whole groups and whole bytes."""
    return max(1, 1024 // group) * group * 4


@jit
def quantize(
    x: Any, group: int, bits: int, full: bool, limit: Any, stochastic: bool, seed: Any, step: Any, steps: Any,
    packed: Any,
) -> bool:  # fmt: skip
    """Groups of flat fp32 ``x``: steps as int32 bits, levels plus 2^(bits - 1) packed (bits of 2, 4 or 8) into zeroed
    uint8; one pass. limit: the largest step, its int32 bits where ``full``, else its code. False if a value is not
    finite."""
    magic = np.float32(12582912.0)  # adding and subtracting it rounds to nearest even
    most, offset, each = np.float32((1 << (bits - 1)) - 1), np.float32(1 << (bits - 1)), 8 // bits
    bits_of, add = np.empty(1, np.int32), 0x7FFF if stochastic else 0x4000
    value = bits_of.view(np.float32)
    chunk = chunk_of(group)
    u = np.empty(chunk if stochastic else 0, np.float32)
    codes = np.empty(chunk + 8, np.uint8)
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk]
        size = len(part)
        if stochastic:
            dither(start, seed, step, 0, u[:size])
        for first in range(0, size, group):
            row, to = part[first : first + group], codes[first : first + group]
            largest = largest_bits(row.view(np.int32), np.int32(0))
            if largest >= 0x7F800000:
                return False
            bits_of[0] = largest
            value[0] /= most
            if full:
                bits_of[0] = np.minimum(bits_of[0], limit)
            if not full:  # the step as it is decoded: see ``scales``
                code = (np.int64(bits_of[0]) + add) >> 15
                bits_of[0] = np.minimum(code, limit) << 15
            steps[(start + first) // group] = bits_of[0]
            unit = value[0]
            if unit == np.float32(0.0):
                for i in range(len(row)):
                    to[i] = np.uint8(1 << (bits - 1))
            elif stochastic:
                noise = u[first : first + group]
                for i in range(len(row)):
                    level = np.floor(row[i] / unit + noise[i])
                    to[i] = np.uint8(np.int32(min(max(level, -most), most) + offset))
            else:
                for i in range(len(row)):
                    level = min(max(row[i] / unit, -most), most)
                    to[i] = np.uint8(np.int32(((level + magic) - magic) + offset))
        for i in range(size, size + 8):
            codes[i] = 0  # unused codes of the last byte are 0, as in ``pack``
        pack(codes, bits, packed[start // each : (start + size + each - 1) // each])
    return True


@jit
def add(out: Any, packed: Any, units: Any, group: int, bits: int, weight: Any, adding: bool) -> None:
    """out = level * unit, or out += (level * unit) * weight, for groups of 2, 4 or 8 bits."""
    offset, each, chunk = np.float32(1 << (bits - 1)), 8 // bits, chunk_of(group)
    codes = np.empty(chunk + 8, np.uint8)
    for start in range(0, len(out), chunk):
        part = out[start : start + chunk]
        unpack(packed[start // each : (start + len(part) + each - 1) // each], bits, codes)
        for first in range(0, len(part), group):
            unit, to = units[(start + first) // group], part[first : first + group]
            row = codes[first : first + len(to)]
            if adding:
                for i in range(len(to)):
                    value = (np.float32(row[i]) - offset) * unit  # in fp32: integers would be widened to 64 bits
                    to[i] += value * weight
            else:
                for i in range(len(to)):
                    to[i] = (np.float32(row[i]) - offset) * unit


@jit
def squares(packed: Any, units: Any, group: int, bits: int, count: int) -> float:
    """The sum of the squares of ``count`` elements in groups of 2, 4 or 8 bits."""
    offset, each, chunk, total = np.int32(1 << (bits - 1)), 8 // bits, chunk_of(group), 0.0
    codes = np.empty(chunk + 8, np.uint8)
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        unpack(packed[start // each : (start + size + each - 1) // each], bits, codes)
        for first in range(0, size, group):
            row, unit = codes[first : min(first + group, size)], np.float64(units[(start + first) // group])
            found = np.int32(0)  # enough: a group has at most 65536 levels of at most 128
            for i in range(len(row)):
                level = np.int32(np.int32(row[i]) - offset)
                found = np.int32(found + np.int32(level * level))
            total += found * unit * unit
    return total
