"""The loops of codecs that rotate, beside EDEN's: blocks of any size, THC's tables, QUIC-FL's."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import hadamard, higher, jit
from ..levels import cells_mirrored, mirrored
from ..packing import planes_back
from ..random import dither, words
from .eden import turn_signs

CHUNK = 4096
PIECE = 1 << 13
"""The largest transform that stays in the cache."""
QUIC = 512
WIDE = 128
"""Columns of a transform that are taken together."""


@jit
def columns(part: Any, half: int) -> None:
    """The stages of strides ``half`` and up of ``part``, for some columns at a time, which are copied together: one
    pass over the memory instead of one for every three stages."""
    rows = len(part) // half
    near = np.empty((rows, WIDE), np.float32)
    for start in range(0, half, WIDE):
        for r in range(rows):
            to, source = near[r], part[r * half + start : r * half + start + WIDE]
            for i in range(WIDE):
                to[i] = source[i]
        higher(near.reshape(-1), WIDE, rows * WIDE)
        for r in range(rows):
            to, source = part[r * half + start : r * half + start + WIDE], near[r]
            for i in range(WIDE):
                to[i] = source[i]


@jit
def transform(row: Any) -> None:
    """``hadamard`` of one row of any length 2^k, in place, first in pieces that fit the cache."""
    size = len(row)
    if size <= PIECE:
        hadamard(row.reshape(1, size))
        return
    half = min(size, PIECE * 8)
    for start in range(0, size, half):
        part = row[start : start + half]
        for first in range(0, half, PIECE):
            hadamard(part[first : first + PIECE].reshape(1, PIECE))
        higher(part, PIECE, half)
    while half < size:
        rows = min(256, size // half)
        for start in range(0, size, half * rows):
            columns(row[start : start + half * rows], half)
        half *= rows


@jit
def turn(x: Any, units: Any, dividing: bool, signs: Any, out: Any) -> None:
    """Rows of flat fp32 ``x`` (the last may be short), divided by or times ``units``, turned: fp32 ``[rows, 2^k]``."""
    rows, size = out.shape
    for r in range(rows):
        part, row, unit = x[r * size : min(len(x), (r + 1) * size)], out[r], units[r]
        if dividing:
            for i in range(len(part)):
                row[i] = part[i] / unit
        else:
            for i in range(len(part)):
                row[i] = part[i] * unit
        row[len(part) :] = np.float32(0.0)
        turn_signs(row.view(np.int32), signs, r * size)
        transform(row)


@jit
def turn_back(rows: Any, signs: Any, factors: Any, weight: Any, adding: bool, out: Any) -> None:
    """``rows`` (spoiled) turned back, times ``factors``, held to fp32: flat ``out`` = that, or += that * weight;
    its last row may be short."""
    most, size = np.float32(3.4028234663852886e38), rows.shape[1]
    for r in range(len(rows)):
        row, factor, to = rows[r], factors[r], out[r * size : min(len(out), (r + 1) * size)]
        transform(row)
        turn_signs(row.view(np.int32), signs, r * size)
        if adding:
            for i in range(len(to)):
                value = min(max(row[i] * factor, -most), most)
                to[i] += value * weight
        else:
            for i in range(len(to)):
                to[i] = min(max(row[i] * factor, -most), most)


@jit
def thc_codes(
    turned: Any, reach: Any, twice: Any, grid: int, table: Any, below: Any, least: Any, edges: Any, highs: Any,
    centre: int, seed: Any, step: Any, first: int, codes: Any,
) -> None:  # fmt: skip
    """THC's indices into ``table`` of turned coordinates, elements ``first`` on, at random; below: of each whole number
    of the grid, the entry at or below it. least, edges, highs, centre: as of ``cells_mirrored``; no edges: the table is
    looked up."""
    u, y, whole = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32), np.float32(grid)
    cells, gaps = np.empty(CHUNK, np.int32), table[1:] - table[:-1]
    gap = np.empty(CHUNK, np.float32)
    for start in range(0, len(turned), CHUNK):
        part = turned[start : start + CHUNK]
        to, size = codes[start : start + CHUNK], len(part)
        dither(first + start, seed, step, 1, u[:size])
        for i in range(size):  # short loops, which the compiler vectorises
            y[i] = (min(max(part[i], -reach), reach) / twice + np.float32(0.5)) * whole
            cells[i] = np.int32(min(max(y[i], np.float32(0.0)), whole))
        if len(edges):
            cells_mirrored(y[:size], u, cells, grid, least, edges, highs, centre, to)
            continue
        for i in range(size):
            index = below[np.uint32(cells[i])]
            y[i] -= table[np.uint32(index)]
            gap[i] = gaps[np.uint32(index)]
            to[i] = np.uint8(index)
        for i in range(size):
            to[i] += u[i] < y[i] / gap[i]


@jit
def quic_private(
    z: Any, reach: Any, least: Any, edges: Any, highs: Any, centre: int, seed: Any, step: Any, codes: Any, outliers: Any
) -> int:
    """QUIC-FL's codes without shared randomness; positions of coordinates beyond ``reach`` are written to ``outliers``.
    least, edges, highs, centre: as in ``mirrored``. Returns the number of outliers."""
    u, y, found = np.empty(QUIC, np.float32), np.empty(QUIC, np.float32), 0
    for start in range(0, len(z), QUIC):
        part, to, any_ = z[start : start + QUIC], codes[start : start + QUIC], np.int32(0)
        size = len(part)
        dither(start, seed, step, 0x43, u[:size])
        for i in range(size):
            any_ |= np.int32(np.abs(part[i]) > reach)
            y[i] = min(max(part[i], -reach), reach)
        if any_:
            for i in range(size):
                outliers[found] = start + i
                found += np.abs(part[i]) > reach
        mirrored(y[:size], u, least, edges, highs, centre, to)
    return found


@jit
def quic_codes(
    z: Any, reach: Any, grid: int, both: Any, choice: Any, shared: Any, step: Any, codes: Any, outliers: Any
) -> int:
    """QUIC-FL's messages with shared randomness; the places of coordinates beyond ``reach`` go to ``outliers``. both:
    uint32 ``[grid + 1, 2^k]``, of each cell and shared value 2^16 times the chance of the next message (17 bits), and
    the message above it. choice, shared: keys' seeds of the streams 0x43 and 0x48. How many outliers."""
    own, common = np.empty(QUIC, np.uint32), np.empty(QUIC, np.uint32)
    half, last, found = np.float32(grid / 2), np.float32(grid - 1), 0
    mask, small = np.uint32(both.shape[1] - 1), np.float32(2.0**-16)  # a power of two of columns
    shift, rows, flat = np.uint32(0), np.empty(QUIC, np.uint32), both.reshape(-1)
    while (1 << shift) < both.shape[1]:
        shift += np.uint32(1)
    for start in range(0, len(z), QUIC):
        part, to = z[start : start + QUIC], codes[start : start + QUIC]
        size, any_ = len(part), np.int32(0)
        words(start, choice, step, 0x43, own[:size])
        words(start, shared, step, 0x48, common[:size])
        for i in range(size):
            any_ |= np.int32(np.abs(part[i]) > reach)
        if any_:
            for i in range(size):
                outliers[found] = start + i
                found += np.abs(part[i]) > reach
        for i in range(size):
            place = (min(max(part[i], -reach), reach) / reach + np.float32(1.0)) * half
            cell = np.int32(min(max(place, np.float32(0.0)), last))
            up = np.float32(np.int32(own[i] >> np.uint32(16))) * small < place - np.float32(cell)
            rows[i] = np.uint32(np.uint32(cell + np.int32(up)) << shift) | np.uint32(common[i] & mask)
        for i in range(size):
            rows[i] = flat[rows[i]]
        for i in range(size):
            next_ = np.uint32(own[i] & np.uint32(0xFFFF)) < np.uint32(rows[i] & np.uint32(0x1FFFF))
            to[i] = np.uint8(np.uint32(rows[i] >> np.uint32(17)) + np.uint32(next_))
    return found


@jit
def quic_values(packed: Any, bits: int, table: Any, shared: Any, step: Any, z: Any) -> None:
    """z: the levels of packed codes with shared randomness."""
    count, mask, flat = len(z), np.uint32(table.shape[0] - 1), table.reshape(-1)
    codes, both = np.empty(CHUNK, np.uint8), np.empty(CHUNK, np.uint32)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        to = z[start : start + size]
        planes_back(packed, bits, count, start, codes[: (size + 7) // 8 * 8])
        words(start, shared, step, 0x48, both[:size])
        for i in range(size):
            to[i] = flat[np.uint32((both[i] & mask) << np.uint32(bits)) | np.uint32(codes[i])]
