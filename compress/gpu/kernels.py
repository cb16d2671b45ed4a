"""Triton kernels of the hot codecs. Each gives the bytes of the CPU code: the same Philox words, the same sums.

Compile and launch them with ``enable_fp_fusion=False`` (``NO_FUSION``): a product and a sum that are fused into one
rounding give other bits than a CPU. Divisions are ``div_rn``; rounding to nearest even is adding 1.5 * 2^23 and taking
it away. Elements are in tiles of 512 as in ``philox``; a program handles BLOCK of them, a multiple of 512.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

NO_FUSION: dict[str, Any] = {"enable_fp_fusion": False}
_triton: Any = triton


def jit(function: Any) -> Any:
    return _triton.jit(function)


MAGIC = tl.constexpr(12582912.0)


@jit
def uniform(start, seed, step, stream, BLOCK: tl.constexpr):
    """fp32 ``[BLOCK]``: philox.uniform of the elements from ``start``, a multiple of 512."""
    tiles: tl.constexpr = BLOCK // 512
    counter = start // 512 * 128 + tl.arange(0, tiles * 128)
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    zero = tl.zeros([tiles * 128], tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, (zero + step).to(tl.uint32), (zero + stream).to(tl.uint32))
    # word w of counter i belongs to element w * 128 + i of its tile
    words = tl.join(tl.join(a, b), tl.join(c, d))
    words = tl.reshape(words, [tiles, 128, 2, 2])
    words = tl.reshape(tl.permute(words, [0, 3, 2, 1]), [BLOCK])
    return (words >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@jit
def step_code(largest, TOP: tl.constexpr, UP: tl.constexpr):
    """int32 code (16 bits) of the step largest / TOP: see ``scales``."""
    bits = tl.div_rn(largest, tl.full(largest.shape, TOP, tl.float32)).to(tl.int32, bitcast=True)
    rounded = bits + (0x7FFF if UP else 0x4000)
    most = tl.div_rn(tl.full(largest.shape, 3.4028234663852886e38, tl.float32), tl.full(largest.shape, TOP, tl.float32))
    return tl.minimum(rounded, most.to(tl.int32, bitcast=True)) >> 15


@jit
def step_value(code):
    return ((code & 0xFFFF) << 15).to(tl.float32, bitcast=True)


@jit
def levels_of(x, unit, u, TOP: tl.constexpr, STOCHASTIC: tl.constexpr):
    """int32 levels of ``x`` over ``unit`` (same shape), TOP + 1 added; u: uniform, where stochastic."""
    fine = unit > 0.0
    ratio = tl.div_rn(x, tl.where(fine, unit, 1.0))
    if STOCHASTIC:
        level = tl.floor(ratio + u)
    else:
        ratio = tl.minimum(tl.maximum(ratio, -TOP * 1.0), TOP * 1.0)
        level = (ratio + MAGIC) - MAGIC
    level = tl.minimum(tl.maximum(level, -TOP * 1.0), TOP * 1.0)
    return tl.where(fine, level, 0.0).to(tl.int32) + (TOP + 1)


@jit
def pack4(codes, BLOCK: tl.constexpr):
    """uint8 ``[BLOCK / 2]`` of int32 codes ``[BLOCK]``."""
    low, high = tl.split(tl.reshape(codes, [BLOCK // 2, 2]))
    return (low | (high << 4)).to(tl.uint8)


@jit
def unpack4(packed, BLOCK: tl.constexpr):
    """int32 ``[BLOCK]`` of uint8 ``[BLOCK / 2]``."""
    wide = packed.to(tl.int32)
    return tl.reshape(tl.join(wide & 15, wide >> 4), [BLOCK])


@jit
def load_levels(codes, first, count, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """fp32 levels ``[BLOCK]`` of packed codes from element ``first``."""
    if BITS == 4:
        place = first // 2 + tl.arange(0, BLOCK // 2)
        level = unpack4(tl.load(codes + place, mask=place * 2 < count, other=0x88), BLOCK)
    else:
        place = first + tl.arange(0, BLOCK)
        level = tl.load(codes + place, mask=place < count, other=128).to(tl.int32)
    return (level - (1 << (BITS - 1))).to(tl.float32)


@jit
def store_group(
    x, first, count, codes, steps, seed, step,
    GROUP: tl.constexpr, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantise ``[BLOCK]`` values in groups and store their codes and steps; returns what they decode to."""
    groups: tl.constexpr = BLOCK // GROUP
    top: tl.constexpr = (1 << (BITS - 1)) - 1
    rows = tl.reshape(x, [groups, GROUP])
    code = step_code(tl.max(tl.abs(rows), 1), top, STOCHASTIC)
    unit = tl.broadcast_to(step_value(code)[:, None], [groups, GROUP])
    u = rows
    if STOCHASTIC:
        u = tl.reshape(uniform(first, seed, step, 0, BLOCK), [groups, GROUP])
    level = tl.reshape(levels_of(rows, unit, u, top, STOCHASTIC), [BLOCK])
    which = first // GROUP + tl.arange(0, groups)
    tl.store(steps + which, code.to(tl.int16), mask=which * GROUP < count)
    if BITS == 4:
        place = first // 2 + tl.arange(0, BLOCK // 2)
        low, high = tl.split(tl.reshape(level, [BLOCK // 2, 2]))
        high = tl.where(place * 2 + 1 < count, high, 0)
        tl.store(codes + place, (low | (high << 4)).to(tl.uint8), mask=place * 2 < count)
    else:
        place = first + tl.arange(0, BLOCK)
        tl.store(codes + place, level.to(tl.uint8), mask=place < count)
    return tl.reshape((level - (top + 1)).to(tl.float32), [groups, GROUP]) * unit


@jit
def group_encode(
    x, codes, steps, count, seed, step,
    GROUP: tl.constexpr, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """int4 and int8: one read of ``x``, codes and 16-bit steps out."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < count, other=0.0).to(tl.float32)
    store_group(value, first, count, codes, steps, seed, step, GROUP, BITS, STOCHASTIC, BLOCK)


@jit
def group_decode(
    codes, steps, out, count, weight, GROUP: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """out = level * step, or out += (level * step) * weight."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    level = load_levels(codes, first, count, BITS, BLOCK)
    which = first // GROUP + tl.arange(0, BLOCK // GROUP)
    unit = step_value(tl.load(steps + which, mask=which * GROUP < count, other=0).to(tl.int32))
    value = tl.reshape(tl.reshape(level, [BLOCK // GROUP, GROUP]) * unit[:, None], [BLOCK])
    if ADD:
        value = tl.load(out + place, mask=place < count, other=0.0) + value * weight
    tl.store(out + place, value, mask=place < count)


@jit
def group_hop(
    codes, steps, local, out_codes, out_steps, count, seed, step,
    GROUP: tl.constexpr, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A hop of a multi-hop exchange in one pass: decode what came, add what is here, encode what goes on."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    level = load_levels(codes, first, count, BITS, BLOCK)
    which = first // GROUP + tl.arange(0, BLOCK // GROUP)
    unit = step_value(tl.load(steps + which, mask=which * GROUP < count, other=0).to(tl.int32))
    value = tl.reshape(tl.reshape(level, [BLOCK // GROUP, GROUP]) * unit[:, None], [BLOCK])
    value = tl.where(place < count, value, 0.0) + tl.load(local + place, mask=place < count, other=0.0).to(tl.float32)
    store_group(value, first, count, out_codes, out_steps, seed, step, GROUP, BITS, STOCHASTIC, BLOCK)


@jit
def sign_accumulate(gradient, error, total, partial, count, BLOCK: tl.constexpr):
    """total = gradient + error, and the sum of |total| of each program."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    g = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    value = g + tl.load(error + place, mask=inside, other=0.0)
    tl.store(total + place, value, mask=inside)
    tl.store(partial + tl.program_id(0), tl.sum(tl.abs(value), 0))


@jit
def sign_encode(total, error, bits, scale, count, BLOCK: tl.constexpr):
    """Bits (1 where >= 0), and error = total - (+-scale); ``total`` and ``error`` may be the same memory."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    value = tl.load(total + place, mask=place < count, other=-1.0)
    s = tl.load(scale)
    up = value >= 0.0
    tl.store(error + place, value - tl.where(up, s, -s), mask=place < count)
    weights = 1 << tl.arange(0, 8)
    byte = tl.sum(tl.reshape(up.to(tl.int32), [BLOCK // 8, 8]) * weights[None, :], 1)
    to = first // 8 + tl.arange(0, BLOCK // 8)
    tl.store(bits + to, byte.to(tl.uint8), mask=to * 8 < count)
