"""Triton kernels of the rotated codecs: signs, Walsh-Hadamard in one program, quantise, pack.

One program rotates a block of up to 8192 coordinates with one read and one write, no more memory traffic than a plain
4-bit quantiser. Larger transforms take another pass for each factor of 128. ``origin``: the index of a segment's first
coordinate in the whole vector, a multiple of the segment's block size.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton.language as tl

from .kernels import jit, load_plane, magnitude, store_plane, uniform, words_of

SIGNS = tl.constexpr(0x5349474E)
LARGEST = tl.constexpr(3.4028234663852886e38)


@jit
def signs(start, low, high, step, stream, BLOCK: tl.constexpr):
    """fp32 ±1 ``[BLOCK]``: philox.signs from ``start``, a multiple of 32.

    Element i takes bit i % 32 of word i // 32, so BLOCK elements take BLOCK / 32 words."""
    words: tl.constexpr = BLOCK // 32
    position = start // 32 + tl.arange(0, words)
    lane = position % 512 // 128
    a, b, c, d = words_of(position // 512 * 128 + position % 128, low, high, step, stream)
    word = tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))
    bit = (word[:, None] >> tl.arange(0, 32)[None, :].to(tl.uint32)) & 1
    return 1.0 - 2.0 * tl.reshape(bit, [BLOCK]).to(tl.int32).to(tl.float32)


@jit
def butterfly(x, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """One stage: (a + b, a - b) of elements HALF apart."""
    pairs = tl.permute(tl.reshape(x, [BLOCK // (2 * HALF), 2, HALF]), [0, 2, 1])
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [BLOCK])


@jit
def hadamard_in_program(x, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """All stages, STAGES = log2 BLOCK. Each stage combines neighbours and moves their index bit to the top, so that the
    next stage's neighbours are the next stride apart; after the last stage the original order is restored."""
    for _ in tl.static_range(STAGES):
        a, b = tl.split(tl.reshape(x, [BLOCK // 2, 2]))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), [1, 0]), [BLOCK])
    return x


@jit
def rotate(
    x, out, low: tl.uint32, high: tl.uint32, step: tl.uint32, stream: tl.uint32, origin: tl.int64,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Blocks of BLOCK: signs (BEFORE), a transform (STAGES; 0: none), signs (AFTER); not normalised."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    place = start + tl.arange(0, BLOCK)
    value = tl.load(x + place)
    if BEFORE:
        value = value * signs(origin + start, low, high, step, stream, BLOCK)
    value = hadamard_in_program(value, BLOCK, STAGES)
    if AFTER:
        value = value * signs(origin + start, low, high, step, stream, BLOCK)
    tl.store(out + place, value)


@jit
def hadamard_rows(x, out, stride: tl.int64, ROWS: tl.constexpr, STAGES: tl.constexpr, COLUMNS: tl.constexpr):
    """A pass of a large transform: elements ``stride`` apart, ROWS of them, for COLUMNS neighbours at once."""
    per = stride // COLUMNS
    group, column = tl.program_id(0).to(tl.int64) // per, tl.program_id(0).to(tl.int64) % per
    base = group * ROWS * stride + column * COLUMNS
    place = base + tl.arange(0, ROWS)[:, None] * stride + tl.arange(0, COLUMNS)[None, :]
    value = tl.reshape(tl.load(x + place), [ROWS * COLUMNS])
    for stage in tl.static_range(STAGES):
        value = butterfly(value, COLUMNS << stage, ROWS * COLUMNS)
    tl.store(out + place, tl.reshape(value, [ROWS, COLUMNS]))


@jit
def store_codes(codes, upper, first, code, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Codes of 1 to 4 bits from element ``first``; ``upper``: where the plane of a third bit begins."""
    if BITS == 3:
        store_plane(codes, first, code, 2, BLOCK)
        store_plane(upper, first, code >> 2, 1, BLOCK)
    else:
        store_plane(codes, first, code, BITS, BLOCK)


@jit
def load_codes(codes, upper, first, BITS: tl.constexpr, BLOCK: tl.constexpr):
    if BITS == 3:
        code = load_plane(codes, first, 2, BLOCK) | (load_plane(upper, first, 1, BLOCK) << 2)
    else:
        code = load_plane(codes, first, BITS, BLOCK)
    return code


@jit
def eden_encode(
    x, codes, upper, factors, flag, edges, levels, low: tl.uint32, high: tl.uint32, step: tl.uint32, origin: tl.int64,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """EDEN, 1 to 4 bits, whole blocks: one read of ``x``; packed codes and one factor per block. BIASED: the factor has
    the least error instead of no bias; its squares add up exactly in fp64, in any order. The flag
    is set where a block's largest is not finite, or so near the ends of fp32's range that it isn't scaled exactly."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    value = tl.load(x + start + tl.arange(0, BLOCK)).to(tl.float32)
    order = tl.max(magnitude(value), 0)
    tl.store(flag, 1, mask=(order != 0) & ((order <= 0x0D800000) | (order >= 0x7B800000)))  # 2^-100, 2^120
    # 2^-e of the largest: exponents of normal numbers only; a block of denormals is a block of zeros
    field = tl.minimum(tl.maximum(order >> 23, 2), 252)
    value = value * ((253 - field) << 23).to(tl.float32, bitcast=True)
    fixed = (value * 8388608.0).to(tl.int32).to(tl.int64)
    energy = tl.sum(fixed * fixed, 0).to(tl.float64) * 1.4210854715202004e-14
    turned = hadamard_in_program(value * signs(origin + start, low, high, step, SIGNS, BLOCK), BLOCK, STAGES)
    spread = tl.sqrt(energy).to(tl.float32)
    z = tl.div_rn(turned, tl.full([BLOCK], 1.0, tl.float32) * tl.where(spread > 0.0, spread, 1.0))
    # Levels are symmetric: count the edges below |z|, where an edge itself belongs to the lower level.
    up = z > 0.0
    size = magnitude(z) - up.to(tl.int32)
    half: tl.constexpr = 1 << (BITS - 1)
    above = tl.zeros([BLOCK], tl.int32)
    least = tl.load(levels + half)
    scaled = tl.zeros([BLOCK], tl.int32) + (least * 1048576.0).to(tl.int32)
    square = tl.zeros([BLOCK], tl.float32) + least * least
    for edge in tl.static_range(half - 1):
        over = size >= tl.load(edges + half + edge).to(tl.int32, bitcast=True)
        above += over.to(tl.int32)
        level = tl.load(levels + half + 1 + edge)
        scaled = tl.where(over, (level * 1048576.0).to(tl.int32), scaled)
        if BIASED:
            square = tl.where(over, level * level, square)
    code = tl.where(up, half + above, half - 1 - above)
    scaled = tl.where(up, scaled, -scaled).to(tl.int64)
    product = tl.sum(scaled * (turned * 131072.0).to(tl.int32).to(tl.int64), 0).to(tl.float64) * 7.275957614183426e-12
    if BIASED:
        factor = tl.where(energy > 0.0, product / (tl.sum(square.to(tl.float64), 0) * BLOCK), 0.0).to(tl.float32)
    else:
        fine = (product > 0.0) & (energy > 0.0)
        factor = tl.where(fine, energy / tl.where(fine, product, 1.0), 0.0).to(tl.float32)
    tl.store(factors + tl.program_id(0), factor * ((field + 1) << 23).to(tl.float32, bitcast=True))
    store_codes(codes, upper, origin + start, code, BITS, BLOCK)


@jit
def eden_decode(
    codes, upper, factors, levels, out, weight: tl.float32,
    low: tl.uint32, high: tl.uint32, step: tl.uint32, origin: tl.int64,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """out = the decoded block, or out += decoded * weight. levels: what a code means, of EDEN or THC."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    code = load_codes(codes, upper, origin + start, BITS, BLOCK)
    value = hadamard_in_program(tl.load(levels + code), BLOCK, STAGES)
    value = value * signs(origin + start, low, high, step, SIGNS, BLOCK) * tl.load(factors + tl.program_id(0))
    value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    place = out + start + tl.arange(0, BLOCK)
    if ADD:
        value = tl.load(place) + value * weight
    tl.store(place, value)


@jit
def thc_code(turned, cells, reach, u, GRID: tl.constexpr, BLOCK: tl.constexpr):
    """int32 indices into THC's table of coordinates of a unit vector, times the root of their number."""
    clamped = tl.minimum(tl.maximum(turned, -reach), reach)
    y = (tl.div_rn(clamped, tl.full([BLOCK], 1.0, tl.float32) * (2.0 * reach)) + 0.5) * GRID
    cell = tl.minimum(tl.floor(tl.where(y > 0.0, y, 0.0)), GRID * 1.0).to(tl.int32)  # of what is no number: 0
    packed = tl.load(cells + cell)
    index, below, next = packed & 255, (packed >> 8 & 255).to(tl.float32), (packed >> 16 & 255).to(tl.float32)
    return index + (u < tl.div_rn(y - below, next - below)).to(tl.int32)


@jit
def thc_encode(
    x, codes, lengths, cells, low: tl.uint32, high: tl.uint32, step: tl.uint32,
    own_low: tl.uint32, own_high: tl.uint32, turn: tl.int32, origin: tl.int64, reach: tl.float32,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr, GRID: tl.constexpr,
):  # fmt: skip
    """THC, whole blocks, against the agreed ``lengths`` of the blocks: packed indices into the table.

    cells: for each unit of the grid, the index below it, its level and the next one, a byte each. own, turn: the key of
    the rounding."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    value = tl.load(x + start + tl.arange(0, BLOCK)).to(tl.float32)
    length = tl.load(lengths + tl.program_id(0))
    safe = tl.full([BLOCK], 1.0, tl.float32) * tl.where(length > 0.0, length, 1.0)
    sign = signs(origin + start, low, high, step, SIGNS, BLOCK)
    turned = hadamard_in_program(tl.div_rn(value, safe) * sign, BLOCK, STAGES)
    u = uniform(origin + start, own_low, own_high, step, 1, turn, BLOCK)
    store_plane(codes, origin + start, thc_code(turned, cells, reach, u, GRID, BLOCK), BITS, BLOCK)


@jit
def thc_round(
    turned, codes, cells, own_low: tl.uint32, own_high: tl.uint32, step: tl.uint32, turn: tl.int32,
    origin: tl.int64, reach: tl.float32, BITS: tl.constexpr, GRID: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The second half of ``thc_encode``, for blocks that were rotated in several passes."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    value = tl.load(turned + start + tl.arange(0, BLOCK))
    u = uniform(origin + start, own_low, own_high, step, 1, turn, BLOCK)
    store_plane(codes, origin + start, thc_code(value, cells, reach, u, GRID, BLOCK), BITS, BLOCK)
