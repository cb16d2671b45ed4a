"""EDEN's compiled loops: a row is rotated, quantised and packed while it is in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import hadamard, jit, largest_bits
from ..packing import planes, planes_back


@jit
def turn_signs(row: Any, words: Any, first: int) -> None:
    """Flips the sign of element i of int32 ``row`` where bit i % 32 of word (first + i) // 32 is set."""
    for i in range(0, len(row), 32):
        word, part = np.int32(words[(first + i) >> 5]), row[i : i + 32]
        for j in range(len(part)):
            part[j] ^= np.int32((word << (31 - j)) & np.int32(-0x80000000))


@jit
def nearest(z: Any, edges: Any, scaled: Any, codes: Any, levels: Any) -> None:
    """uint8 codes: how many of the rising ``edges`` are below each of fp32 ``z``; levels: ``scaled`` of the codes."""
    codes[:] = 0
    levels[:] = scaled[0]
    for e in range(len(edges)):
        edge, level = edges[e], scaled[e + 1]
        for i in range(len(z)):
            over = z[i] > edge
            codes[i] += over
            levels[i] = level if over else levels[i]


@jit
def nearest16(z: Any, edges: Any, scaled: Any, codes: Any, levels: Any) -> None:
    """As ``nearest`` for the int32 bits of z and 16 levels, symmetric about 0: all edges in one pass over 7 of them."""
    e0, e1, e2, e3, e4, e5, e6 = edges[8], edges[9], edges[10], edges[11], edges[12], edges[13], edges[14]
    s0, s1, s2, s3 = scaled[8], scaled[9], scaled[10], scaled[11]
    s4, s5, s6, s7 = scaled[12], scaled[13], scaled[14], scaled[15]
    for i in range(len(z)):
        # |z|, or for z > 0 the next smaller number: "at least the edge" is then "above the edge"
        up = z[i] > 0
        size = np.int32((z[i] & 0x7FFFFFFF) - up)
        level, above = s0, np.int32(0)
        level, above = (s1, np.int32(1)) if size >= e0 else (level, above)
        level, above = (s2, np.int32(2)) if size >= e1 else (level, above)
        level, above = (s3, np.int32(3)) if size >= e2 else (level, above)
        level, above = (s4, np.int32(4)) if size >= e3 else (level, above)
        level, above = (s5, np.int32(5)) if size >= e4 else (level, above)
        level, above = (s6, np.int32(6)) if size >= e5 else (level, above)
        level, above = (s7, np.int32(7)) if size >= e6 else (level, above)
        codes[i] = np.uint8(8 + above if up else 7 - above)
        levels[i] = level if up else -level


@jit
def nearest8(z: Any, edges: Any, scaled: Any, codes: Any, levels: Any) -> None:
    """As ``nearest16``, of 8 levels."""
    e0, e1, e2 = edges[4], edges[5], edges[6]
    s0, s1, s2, s3 = scaled[4], scaled[5], scaled[6], scaled[7]
    for i in range(len(z)):
        up = z[i] > 0
        size = np.int32((z[i] & 0x7FFFFFFF) - up)
        level, above = s0, np.int32(0)
        level, above = (s1, np.int32(1)) if size >= e0 else (level, above)
        level, above = (s2, np.int32(2)) if size >= e1 else (level, above)
        level, above = (s3, np.int32(3)) if size >= e2 else (level, above)
        codes[i] = np.uint8(4 + above if up else 3 - above)
        levels[i] = level if up else -level


@jit
def nearest4(z: Any, edges: Any, scaled: Any, codes: Any, levels: Any) -> None:
    """As ``nearest16``, of 4 levels."""
    edge, small, large = edges[2], scaled[2], scaled[3]
    for i in range(len(z)):
        up = z[i] > 0
        over = np.int32((z[i] & 0x7FFFFFFF) - up) >= edge
        level, above = (large, np.int32(1)) if over else (small, np.int32(0))
        codes[i] = np.uint8(2 + above if up else 1 - above)
        levels[i] = level if up else -level


@jit
def looked_up(codes: Any, levels: Any, out: Any) -> None:
    """out = levels[code]; levels are 2^k, symmetric about 0."""
    if len(levels) == 4:
        small, large = levels[2], levels[3]
        for i in range(len(codes)):
            code = np.int32(codes[i])
            level = large if (code == 0) | (code == 3) else small
            out[i] = level if code >= 2 else -level
    elif len(levels) == 8:
        s0, s1, s2, s3 = levels[4], levels[5], levels[6], levels[7]
        for i in range(len(codes)):
            code = np.int32(codes[i])
            above = code - np.int32(4) if code >= 4 else np.int32(3) - code
            low, high = (s1, s3) if above & 1 else (s0, s2)
            level = high if above & 2 else low
            out[i] = level if code >= 4 else -level
    else:
        for i in range(len(codes)):
            out[i] = levels[codes[i]]


@jit
def nearest_cells(z: Any, edges: Any, cells: Any, reach: Any, scaled: Any, codes: Any, levels: Any) -> None:
    """As ``nearest``, for many levels. cells: for each of equal parts of [-reach, reach] the number of edges below it;
    no part contains two edges."""
    count = np.float32(len(cells))
    scale, last = count / (reach + reach), count - np.float32(1.0)
    for i in range(len(z)):
        place = min(max((z[i] + reach) * scale, np.float32(0.0)), last)
        code = cells[np.uint32(place)]
        code += z[i] > edges[np.uint32(code)]
        codes[i] = np.uint8(code)
        levels[i] = scaled[np.uint32(code)]


@jit
def turned_row(row: Any, words: Any, first: int, turned: Any) -> Any:
    """(exponent field of a row's largest magnitude, 2^46 times the sum of the squares of the row scaled by it);
    ``turned``: the scaled and rotated row. (-1, 0): the largest is not finite, denormal or beyond 2^125. (0, 0): the
    row is zero, and ``turned`` is not written."""
    one = np.empty(1, np.int32)
    largest = largest_bits(row.view(np.int32), np.int32(0))
    field, energy = np.int64(largest) >> 23, np.int64(0)
    if largest == 0:
        return np.int64(0), energy
    if field < 2 or field > 250:
        return np.int64(-1), energy
    one[0] = (253 - field) << 23
    scale = one.view(np.float32)[0]
    for i in range(len(row)):
        turned[i] = row[i] * scale
    for i in range(len(row)):
        fixed = np.int64(np.int32(turned[i] * np.float32(8388608.0)))
        energy += fixed * fixed
    turn_signs(turned.view(np.int32), words, first)
    hadamard(turned.reshape(1, len(row)))
    return field, energy


@jit
def quantized(z: Any, edges: Any, cells: Any, scaled: Any, codes: Any, levels: Any) -> None:
    """codes: of the nearest of 2^k levels; levels: ``scaled`` of the codes. cells: as in ``nearest_cells``, or
    empty."""
    if len(cells):
        nearest_cells(z, edges, cells, edges[len(edges) - 2], scaled, codes, levels)
    elif len(scaled) == 16:
        nearest16(z.view(np.int32), edges.view(np.int32), scaled, codes, levels)
    elif len(scaled) == 8:
        nearest8(z.view(np.int32), edges.view(np.int32), scaled, codes, levels)
    elif len(scaled) == 4:
        nearest4(z.view(np.int32), edges.view(np.int32), scaled, codes, levels)
    else:
        nearest(z, edges, scaled, codes, levels)


@jit
def factor_of(kind: int, field: Any, energy: Any, product: Any, bottom: Any, size: int) -> Any:
    """A row's factor from integer sums. kind: 0 unbiased, 1 least error, 2 the norm. bottom: the sum of the squares of
    the levels."""
    total, below = np.float64(energy) * 2.0**-46, np.float64(product) * 2.0**-37
    factor, one = np.float32(0.0), np.empty(1, np.int32)
    if kind == 0:
        factor = np.float32(total / below) if product > 0 and energy > 0 else factor
    elif kind == 1:
        factor = np.float32(below / (bottom * size)) if energy > 0 else factor
    else:
        factor = np.float32(np.sqrt(total) / size)
    one[0] = (field + 1) << 23
    return factor * one.view(np.float32)[0]


@jit
def encode(
    rows: Any, words: Any, levels: Any, edges: Any, cells: Any, kind: int, bits: int, packed: Any, count: int,
    first: int, factors: Any,
) -> bool:  # fmt: skip
    """EDEN, whole bits: the factors of ``[rows, 2^k]`` and their codes, packed as elements ``first`` on of ``count``.
    words: the Philox words of the signs. cells: as in ``nearest_cells``, with edges that end with infinity; empty: all
    edges are compared. kind: as in ``factor_of``. False if a row's largest value is not finite, denormal or beyond
    2^125."""
    squared = (levels * levels).astype(np.float64)
    size = rows.shape[1]
    turned, z = np.empty(size, np.float32), np.empty(size, np.float32)
    codes, chosen = np.empty(size, np.uint8), np.empty(size, np.int32)
    scaled = (levels * np.float32(1048576.0)).astype(np.int32)
    for r in range(rows.shape[0]):
        field, energy = turned_row(rows[r], words, r * size, turned)
        if field <= 0:
            if field < 0:
                return False
            factors[r] = 0.0
            codes[:] = len(levels) // 2 - 1
            planes(codes, bits, packed, count, first + r * size)
            continue
        spread = np.float32(np.sqrt(np.float64(energy) * 2.0**-46))
        for i in range(size):
            z[i] = turned[i] / spread
        quantized(z, edges, cells, scaled, codes, chosen)
        planes(codes, bits, packed, count, first + r * size)
        product, bottom = np.int64(0), 0.0  # the sum of so few and so short squares is exact
        if kind != 2:
            for i in range(size):
                product += np.int64(chosen[i]) * np.int64(np.int32(turned[i] * np.float32(131072.0)))
        if kind == 1:
            for i in range(size):
                bottom += squared[codes[i]]
        factors[r] = factor_of(kind, field, energy, product, bottom, size)
    return True


@jit
def turned_back(turned: Any, words: Any, first: int, factor: Any, weight: Any, adding: bool, row: Any) -> None:
    """The inverse of ``turned_row``, of levels in ``turned`` (spoiled), times ``factor`` and held to fp32: ``row`` =
    that, or += that * weight."""
    size, most = len(turned), np.float32(3.4028234663852886e38)
    hadamard(turned.reshape(1, size))
    turn_signs(turned.view(np.int32), words, first)
    for i in range(size):
        value = min(max(turned[i] * factor, -most), most)
        if adding:
            row[i] += value * weight
        else:
            row[i] = value


@jit
def decode(
    packed: Any, words: Any, levels: Any, bits: int, count: int, first: int, factors: Any, weight: Any, adding: bool,
    out: Any,
) -> None:  # fmt: skip
    """Fp32 ``[rows, 2^k]`` of the codes of elements ``first`` on: ``out`` = decoded, or ``out`` += decoded * weight."""
    size = out.shape[1]
    codes, turned = np.empty(size, np.uint8), np.empty(size, np.float32)
    for r in range(out.shape[0]):
        planes_back(packed, bits, count, first + r * size, codes)
        looked_up(codes, levels, turned)
        turned_back(turned, words, r * size, factors[r], weight, adding, out[r])
