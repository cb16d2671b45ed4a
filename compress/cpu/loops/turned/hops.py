"""The loops of codecs made for several hops: blocks of 256, of several widths, rotated or with the mean subtracted."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import hadamard, jit, largest_bits
from ..levels import between, mirrored
from ..packing import planes_back_in, planes_in
from ..random import dither, words
from ..sums import chunk
from .eden import turn_signs

BLOCK = 256


@jit
def prepared(x: Any, b: int, first: Any, second: Any, turning: bool, signs: Any, row: Any) -> None:
    """row: block b of flat fp32 ``x`` times two powers of two; rotated if ``turning``."""
    part = x[b * BLOCK : (b + 1) * BLOCK]
    for i in range(len(part)):
        row[i] = (part[i] * first) * second
    for i in range(len(part), BLOCK):
        row[i] = np.float32(0.0)
    if turning:
        turn_signs(row.view(np.int32), signs, b * BLOCK)
        hadamard(row.reshape(1, BLOCK))
        for i in range(BLOCK):
            row[i] *= np.float32(0.0625)


@jit
def energies(x: Any, first: Any, second: Any, turning: bool, signs: Any, out: Any) -> None:
    """fp64 sums of the squares of prepared blocks, as ``primitives.sums.tree`` adds them."""
    row, room = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float64)
    for b in range(len(out)):
        prepared(x, b, first, second, turning, signs, row)
        out[b] = chunk(row, 1, room)


@jit
def noise(start: int, seed: Any, step: Any, shared: Any, rank: int, members: int, word: Any, u: Any) -> None:
    """u: uniform numbers of the elements from ``start`` on. members: the number of workers with the same words of
    stream 2; this one, ``rank``, then draws from its own part of [0, 1). 0: not known, from all of [0, 1)."""
    dither(start, seed, step, 0, u)
    if members:
        words(start, shared, step, 2, word)
        count = np.float32(members)
        for i in range(len(u)):
            turn = np.int64(word[i]) + rank
            u[i] = (np.float32(turn % members) + u[i]) / count


@jit
def centred(row: Any, room: Any) -> Any:
    """Subtract the mean of ``row``, rounded to bfloat16, from it. Returns that mean's uint16 bits."""
    word = np.empty(1, np.int32)
    real = word.view(np.float32)
    real[0] = np.float32(chunk(row, 4, room) / np.float64(BLOCK))
    bits = np.int64(word[0]) & 0xFFFFFFFF
    short = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    word[0] = np.int32(short << 16)
    for i in range(BLOCK):
        row[i] -= real[0]
    return np.uint16(short)


@jit
def quantize(
    x: Any, first: Any, second: Any, turning: bool, signs: Any, choice: Any, widths: Any, starts: Any, counts: Any,
    lows: Any, gaps: Any, nexts: Any, cells: Any, origin: Any, scale: Any, leasts: Any, edges: Any, highs: Any,
    centres: Any, limit: int, seed: Any, step: Any,
    shared: Any, rank: int, members: int, means: Any, codes16: Any, fine: Any, packed: Any,
) -> None:  # fmt: skip
    """Quantise blocks with random rounding. choice: the index in ``widths`` of each block; starts, counts: for each
    width its first byte in ``packed`` and its number of elements. lows, gaps, nexts, cells: as in ``between``, a row
    for each width; leasts, edges, highs, centres: as in ``mirrored``; a centre below 0: not for this width. codes16:
    the blocks' scales; without rotation also means, and fine with 16 scales per block."""
    row, u, gap = np.empty(BLOCK, np.float32), np.empty(2 * BLOCK, np.float32), np.empty(BLOCK, np.float32)
    word, place, part = np.empty(2 * BLOCK, np.uint32), np.empty(BLOCK, np.int32), np.empty(BLOCK, np.uint8)
    codes, room, done = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.float64), np.zeros(len(widths), np.int64)
    negative, bits = np.empty(BLOCK, np.uint8), np.empty(1, np.int32)
    real = bits.view(np.float32)
    one, whole = np.float32(1.0), np.float32(255.0)
    for b in range(len(choice)):
        prepared(x, b, first, second, turning, signs, row)
        if b % 2 == 0:
            noise(b * BLOCK, seed, step, shared, rank, members, word, u)
        if not turning:
            means[b] = centred(row, room)
            for i in range(BLOCK):
                negative[i] = row[i] < np.float32(0.0)
        largest = np.int64(largest_bits(row.view(np.int32), np.int32(0)))
        code = min((largest + 0x7FFF) >> 15, np.int64(limit))
        codes16[b] = np.int16(code)
        bits[0] = np.int32(code << 15)
        unit = real[0]
        safe = unit if unit > np.float32(0.0) else one
        if turning:
            for i in range(BLOCK):
                row[i] = min(max(row[i] / safe, -one), one)
        else:
            each = unit / whole
            for g in range(0, BLOCK, 16):
                group = row[g : g + 16]
                bits[0] = largest_bits(group.view(np.int32), np.int32(0))
                size = min(np.ceil(real[0] / safe * whole), whole)
                fine[b * 16 + g // 16] = np.uint8(size)
                step_ = size * each
                step_ = step_ if step_ > np.float32(0.0) else one
                for i in range(16):
                    group[i] = min(np.abs(group[i]) / step_, one)
        c = choice[b]
        half = u[BLOCK:] if b % 2 else u[:BLOCK]
        if centres[c] >= 0:
            mirrored(row, half, leasts[c], edges[c], highs[c], centres[c], codes)
        else:
            between(row, half, lows[c], gaps[c], nexts[c], cells[c], origin, scale, place, gap, codes)
        if not turning:
            shift = np.uint8(widths[c] - 1)
            for i in range(BLOCK):
                codes[i] |= np.uint8(negative[i] << shift)
        planes_in(codes, widths[c], packed[starts[c] :], counts[c], done[c], part)
        done[c] += BLOCK


@jit
def dequantize(
    packed: Any, choice: Any, widths: Any, starts: Any, counts: Any, levels: Any, units: Any, means: Any, back: bool,
    signs: Any, first: Any, second: Any, weight: Any, adding: bool, out: Any,
) -> None:  # fmt: skip
    """The inverse of ``quantize``: ``out`` = decoded, or += decoded * weight. levels: fp32, a row of 2^width for each
    width; units: fp32, one for each block, or where there are means 16. back: turned back, and times two powers of two,
    clamped to fp32's range; else the blocks as they are."""
    row, codes, part = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.uint8)
    done, most = np.zeros(len(widths), np.int64), np.float32(3.4028234663852886e38)
    for b in range(len(choice)):
        c = choice[b]
        planes_back_in(packed[starts[c] :], widths[c], counts[c], done[c], codes, part)
        done[c] += BLOCK
        table = levels[c]
        if len(means):
            mean = means[b]
            for g in range(16):
                unit, each = units[16 * b + g], row[16 * g : 16 * g + 16]
                source = codes[16 * g : 16 * g + 16]
                for i in range(16):
                    value = table[source[i]] * unit
                    each[i] = value + mean
        else:
            unit = units[b]
            for i in range(BLOCK):
                row[i] = table[codes[i]] * unit
            if back:
                hadamard(row.reshape(1, BLOCK))
                turn_signs(row.view(np.int32), signs, b * BLOCK)
                for i in range(BLOCK):
                    row[i] *= np.float32(0.0625)
        to = out[b * BLOCK : (b + 1) * BLOCK]
        if back:
            for i in range(BLOCK):
                row[i] = min(max((row[i] * first) * second, -most), most)
        if adding:
            for i in range(len(to)):
                product = row[i] * weight
                to[i] += product
        else:
            for i in range(len(to)):
                to[i] = row[i]
