"""The loops of activations' codecs (tiles that may be rotated, groups with a power of two) and of the k largest of each
chunk."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import hadamard, jit, largest_bits
from ..packing import planes, planes_back
from ..random import dither

CHUNK = 4096
"""Elements at once: whole tiles, few enough for the L1 cache."""


@jit
def tile(
    x: Any, size: int, bits: int, outlier: float, stochastic: bool, limit: int, seed: Any, step: Any, steps: Any,
    turned: Any, packed: Any,
) -> bool:  # fmt: skip
    """``Tile.write``: codes of steps (int32), whether a tile was turned (uint8), packed levels. False where the slow
    way is needed: a tile whose largest value is denormal or beyond 2^124."""
    tiles, top = len(steps), np.float32((1 << (bits - 1)) - 1)
    magic, share, most = np.float32(12582912.0), np.float32(size**-0.5), np.float32(3.4028234663852886e38)
    row, one, codes = np.empty(size, np.float32), np.empty(1, np.int32), np.empty(CHUNK, np.uint8)
    u, real, add = np.empty(CHUNK, np.float32), one.view(np.float32), 0x7FFF if stochastic else 0x4000
    for start in range(0, tiles * size, CHUNK):
        count = min(CHUNK, tiles * size - start)
        if stochastic:
            dither(start, seed, step, 0, u[:count])
        for first in range(0, count, size):
            t = (start + first) // size
            part, to = x[start + first : start + first + size], codes[first : first + size]
            noise = u[first : first + size]
            largest = largest_bits(part.view(np.int32), np.int32(0))
            field = np.int64(largest) >> 23
            turned[t] = 0
            if largest == 0:
                steps[t] = 0
                to[:] = np.uint8(1 << (bits - 1))
                continue
            if field < 2 or field > 250:
                return False
            one[0] = (253 - field) << 23
            down, energy = real[0], np.int64(0)
            one[0] = (field + 1) << 23
            up = real[0]
            for i in range(len(part)):
                row[i] = part[i] * down
            for i in range(len(part), size):
                row[i] = np.float32(0.0)
            for i in range(size):
                fixed = np.int64(np.int32(row[i] * np.float32(8388608.0)))
                energy += fixed * fixed
            one[0] = largest
            if np.float64(real[0] * down) > outlier * np.sqrt(np.float64(energy) * 2.0**-46 / size):
                turned[t] = 1
                hadamard(row.reshape(1, size))
                for i in range(size):
                    row[i] *= share
            one[0] = largest_bits(row.view(np.int32), np.int32(0))
            real[0] = min(real[0] / top * up, most)
            code = min((np.int64(one[0]) + add) >> 15, np.int64(limit))
            steps[t] = code
            one[0] = code << 15
            unit = real[0] * down
            if unit == np.float32(0.0):
                to[:] = np.uint8(1 << (bits - 1))
            elif stochastic:
                for i in range(size):
                    level = min(max(np.floor(row[i] / unit + noise[i]), -top), top)
                    to[i] = np.uint8(np.int32(level + (top + np.float32(1.0))))
            else:
                for i in range(size):
                    level = min(max((row[i] / unit + magic) - magic, -top), top)
                    to[i] = np.uint8(np.int32(level + (top + np.float32(1.0))))
        planes(codes[:count], bits, packed, tiles * size, start)
    return True


@jit
def tile_back(packed: Any, units: Any, turned: Any, size: int, bits: int, weight: Any, adding: bool, out: Any) -> None:
    """``out`` = decoded tiles, or ``out`` += decoded * weight."""
    count, most, share = len(units) * size, np.float32(3.4028234663852886e38), np.float32(size**-0.5)
    row, codes, offset = np.empty(size, np.float32), np.empty(CHUNK, np.uint8), np.float32(1 << (bits - 1))
    for start in range(0, count, CHUNK):
        here = min(CHUNK, count - start)
        planes_back(packed, bits, count, start, codes[: (here + 7) // 8 * 8])
        for first in range(0, here, size):
            t, source = (start + first) // size, codes[first : first + size]
            for i in range(size):
                row[i] = np.float32(source[i]) - offset
            if turned[t]:
                hadamard(row.reshape(1, size))
                for i in range(size):
                    row[i] *= share
            to, unit = out[start + first : start + first + size], units[t]
            if adding:
                for i in range(len(to)):
                    value = min(max(row[i] * unit, -most), most)
                    to[i] += value * weight
            else:
                for i in range(len(to)):
                    to[i] = min(max(row[i] * unit, -most), most)


@jit
def shifts(x: Any, group: int, bits: int, exponents: Any, packed: Any, decoded: Any) -> None:
    """AQ-SGD's groups: int8 exponents, packed levels, and what they decode to."""
    count, top = len(x), np.float32((1 << (bits - 1)) - 1)
    magic, most, offset = np.float32(12582912.0), np.float32(3.4028234663852886e38), np.float32(1 << (bits - 1))
    one, codes = np.empty(1, np.int32), np.empty(CHUNK, np.uint8)
    real, at, begun = one.view(np.float32), 0, 0
    for g in range(len(exponents)):
        end = min(count, (g + 1) * group)
        one[0] = largest_bits(x[g * group : end].view(np.int32), np.int32(0))
        zero = one[0] == 0
        real[0] /= top
        exponent = (np.int64(one[0]) >> 23) - 126
        if one[0] & 0x7FFFFF == 0:
            exponent -= 1
        exponent = max(exponent, np.int64(-126))
        exponents[g] = -128 if zero else exponent
        one[0] = (exponent + 127) << 23
        unit = real[0]
        while at < end:
            size = min(end - at, CHUNK - (at - begun))
            part, to, back = x[at : at + size], codes[at - begun : at - begun + size], decoded[at : at + size]
            for i in range(size):
                level = min(max((part[i] / unit + magic) - magic, -top), top)
                to[i] = np.uint8(np.int32(level + offset))
                back[i] = min(max((np.float32(0.0) + level) * unit, -most), most)
            at += size
            if at - begun == CHUNK or at == count:
                planes(codes[: at - begun], bits, packed, count, begun)
                begun = at


@jit
def chunk_largest(x: Any, chunk: int, k: int, order: Any) -> None:
    """The places, rising, of the k largest magnitudes of each whole chunk, ties to the lowest; fp32 ``x``, finite."""
    bits, counts, near = x.view(np.int32), np.empty(2048, np.int32), np.empty(chunk, np.int32)
    for c in range(order.shape[0]):
        part, to = bits[c * chunk : (c + 1) * chunk], order[c]
        counts[:] = 0
        for i in range(chunk):
            counts[(part[i] & 0x7FFFFFFF) >> 20] += 1
        digit, missing = 2047, k
        while counts[digit] < missing:
            missing -= counts[digit]
            digit -= 1
        found = 0
        for i in range(chunk):
            value = np.int32(part[i] & 0x7FFFFFFF)
            near[found] = value
            found += (value >> 20) == digit
            if found == chunk:
                break
        ordered = np.sort(near[:found])
        least = ordered[found - missing]
        ties = 0
        for i in range(found - missing, found):
            ties += ordered[i] == least
        place = 0
        for i in range(chunk):
            value = np.int32(part[i] & 0x7FFFFFFF)
            if value >= least:
                if value == least:
                    if ties == 0:
                        continue
                    ties -= 1
                to[place] = i
                place += 1
