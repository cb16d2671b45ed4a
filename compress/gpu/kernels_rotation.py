"""Triton kernels of the rotated codecs: signs, Walsh-Hadamard in one program, quantise, pack.

A block of up to 8192 coordinates is rotated by one program with one read and one write, which costs no more memory
traffic than a plain 4-bit quantiser. Larger transforms take one more pass for each 128 rows.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton.language as tl

from .kernels import jit, pack4, uniform, unpack4

SIGNS = tl.constexpr(0x5349474E)
LARGEST = tl.constexpr(3.4028234663852886e38)


@jit
def signs(start, seed, step, BLOCK: tl.constexpr):
    """fp32 ±1 ``[BLOCK]``: philox.signs from ``start``, a multiple of 16384 or of BLOCK; BLOCK is at least 4096.

    Element i takes bit i % 32 of word i // 32, so BLOCK elements take BLOCK / 32 words."""
    words: tl.constexpr = BLOCK // 32
    first = start // 32
    position = first + tl.arange(0, words)
    lane = position % 512 // 128
    counter = position // 512 * 128 + position % 128
    zero = tl.zeros([words], tl.uint32)
    a, b, c, d = tl.philox(
        seed,
        (counter & 0xFFFFFFFF).to(tl.uint32),
        (counter >> 32).to(tl.uint32),
        (zero + step).to(tl.uint32),
        (zero + SIGNS).to(tl.uint32),
    )
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
    """All stages, STAGES = log2 BLOCK. Each adds neighbours and moves their bit of the index to the top, so the next
    stage's neighbours are the next stride apart, and after the last the order is what it was."""
    for _ in tl.static_range(STAGES):
        a, b = tl.split(tl.reshape(x, [BLOCK // 2, 2]))
        x = tl.reshape(tl.permute(tl.join(a + b, a - b), [1, 0]), [BLOCK])
    return x


@jit
def rotate(x, out, seed, step, BLOCK: tl.constexpr, STAGES: tl.constexpr, INVERSE: tl.constexpr):
    """Blocks of BLOCK: signs then transform, or transform then signs; not normalised."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    place = start + tl.arange(0, BLOCK)
    value = tl.load(x + place)
    sign = signs(start, seed, step, BLOCK)
    if INVERSE:
        value = hadamard_in_program(value, BLOCK, STAGES) * sign
    else:
        value = hadamard_in_program(value * sign, BLOCK, STAGES)
    tl.store(out + place, value)


@jit
def hadamard_rows(x, out, stride, ROWS: tl.constexpr, STAGES: tl.constexpr, COLUMNS: tl.constexpr):
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
def eden_encode(
    x, codes, factors, edges, levels, seed, step,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """EDEN, unbiased, 1 or 4 bits, whole blocks: one read of ``x``; packed codes and one factor per block."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    value = tl.load(x + start + tl.arange(0, BLOCK)).to(tl.float32)
    largest = tl.max(tl.abs(value), 0)
    # 2^-e of the largest: exponents of normal numbers only; a block of denormals is a block of zeros
    field = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 2), 252)
    value = value * ((253 - field) << 23).to(tl.float32, bitcast=True)
    fixed = (value * 8388608.0).to(tl.int32).to(tl.int64)
    energy = tl.sum(fixed * fixed, 0).to(tl.float64) * 1.4210854715202004e-14
    turned = hadamard_in_program(value * signs(start, seed, step, BLOCK), BLOCK, STAGES)
    spread = tl.sqrt(energy).to(tl.float32)
    z = tl.div_rn(turned, tl.full([BLOCK], 1.0, tl.float32) * tl.where(spread > 0.0, spread, 1.0))
    # Levels are symmetric: count the edges below |z|, where an edge itself belongs to the lower level.
    up = z > 0.0
    size = (z.to(tl.int32, bitcast=True) & 0x7FFFFFFF) - up.to(tl.int32)
    half: tl.constexpr = 1 << (BITS - 1)
    above = tl.zeros([BLOCK], tl.int32)
    scaled = tl.zeros([BLOCK], tl.int32) + (tl.load(levels + half) * 1048576.0).to(tl.int32)
    for edge in tl.static_range(half - 1):
        over = size >= tl.load(edges + half + edge).to(tl.int32, bitcast=True)
        above += over.to(tl.int32)
        scaled = tl.where(over, (tl.load(levels + half + 1 + edge) * 1048576.0).to(tl.int32), scaled)
    code = tl.where(up, half + above, half - 1 - above)
    scaled = tl.where(up, scaled, -scaled).to(tl.int64)
    product = tl.sum(scaled * (turned * 131072.0).to(tl.int32).to(tl.int64), 0).to(tl.float64) * 7.275957614183426e-12
    fine = (product > 0.0) & (energy > 0.0)
    factor = tl.where(fine, energy / tl.where(fine, product, 1.0), 0.0).to(tl.float32)
    tl.store(factors + tl.program_id(0), factor * ((field + 1) << 23).to(tl.float32, bitcast=True))
    if BITS == 4:
        tl.store(codes + start // 2 + tl.arange(0, BLOCK // 2), pack4(code, BLOCK))
    else:
        weights = 1 << tl.arange(0, 8)
        byte = tl.sum(tl.reshape(code, [BLOCK // 8, 8]) * weights[None, :], 1)
        tl.store(codes + start // 8 + tl.arange(0, BLOCK // 8), byte.to(tl.uint8))


@jit
def eden_decode(
    codes, factors, levels, out, weight, seed, step,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """out = the decoded block, or out += decoded * weight."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if BITS == 4:
        code = unpack4(tl.load(codes + start // 2 + tl.arange(0, BLOCK // 2)), BLOCK)
    else:
        byte = tl.load(codes + start // 8 + tl.arange(0, BLOCK // 8)).to(tl.int32)
        code = tl.reshape((byte[:, None] >> tl.arange(0, 8)[None, :]) & 1, [BLOCK])
    value = hadamard_in_program(tl.load(levels + code), BLOCK, STAGES) * signs(start, seed, step, BLOCK)
    value = value * tl.load(factors + tl.program_id(0))
    value = tl.minimum(tl.maximum(value, -LARGEST), LARGEST)
    place = out + start + tl.arange(0, BLOCK)
    if ADD:
        value = tl.load(place) + value * weight
    tl.store(place, value)


@jit
def thc_encode(
    x, codes, lengths, cells, seed, private, step, reach,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, GRID: tl.constexpr,
):  # fmt: skip
    """THC, 4 bits, whole blocks, against the agreed ``lengths`` of the blocks: packed indices into the table.

    cells: for each unit of the grid, the index below it, its level and the next one, a byte each."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    value = tl.load(x + start + tl.arange(0, BLOCK)).to(tl.float32)
    length = tl.load(lengths + tl.program_id(0))
    safe = tl.full([BLOCK], 1.0, tl.float32) * tl.where(length > 0.0, length, 1.0)
    turned = hadamard_in_program(tl.div_rn(value, safe) * signs(start, seed, step, BLOCK), BLOCK, STAGES)
    clamped = tl.minimum(tl.maximum(turned, -reach), reach)
    y = (tl.div_rn(clamped, tl.full([BLOCK], 1.0, tl.float32) * (2.0 * reach)) + 0.5) * GRID
    cell = tl.minimum(tl.maximum(tl.floor(y), 0.0), GRID * 1.0).to(tl.int32)
    packed = tl.load(cells + cell)
    index, low, high = packed & 255, (packed >> 8 & 255).to(tl.float32), (packed >> 16 & 255).to(tl.float32)
    u = uniform(start, private, step, 1, BLOCK)
    code = index + (u < tl.div_rn(y - low, high - low)).to(tl.int32)
    tl.store(codes + start // 2 + tl.arange(0, BLOCK // 2), pack4(code, BLOCK))
