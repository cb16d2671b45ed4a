"""Triton kernels of the hot codecs. Each gives the bytes of the CPU code: the same Philox words, the same sums.

Compile and launch them with ``enable_fp_fusion=False`` (``NO_FUSION``): a fused multiply-add gives other bits than a
CPU. Divisions are ``div_rn``; adding and subtracting 1.5 * 2^23 rounds to nearest even. Elements are in tiles of 512 as
in ``philox``; a program handles BLOCK of them, a multiple of 512.

A key is five numbers: the two halves of the seed (``low``, ``high``), ``step``, ``stream``, ``turn``. They and the
counts have fixed types, and Triton does not specialise kernels for some of their values. A ``flag`` (int32 [1]) becomes
1 if a value is not finite; the reader of the codes checks it.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import inspect
from typing import Any

import triton
import triton.language as tl

NO_FUSION: dict[str, Any] = {"enable_fp_fusion": False}
_triton: Any = triton


def jit(function: Any) -> Any:
    numbers = [name for name, one in inspect.signature(function).parameters.items() if one.annotation in NUMBERS]
    return _triton.jit(function, do_not_specialize=numbers)


NUMBERS = ("tl.int64", "tl.int32", "tl.uint32", "tl.float32")
"""Argument types without specialisation: else Triton compiles a kernel again for 1 and for multiples of 16."""
MAGIC = tl.constexpr(12582912.0)
INFINITE = tl.constexpr(0x7F800000)


@jit
def load_upto(base, place, end, count, other):
    """base[place], and ``other`` from index ``count`` on; ``end``: the index after the last. Whole blocks are loaded
    without a mask, because with a mask of unknown boundary each element is loaded separately."""
    if end <= count:
        value = tl.load(base + place)
    else:
        value = tl.load(base + place, mask=place < count, other=other)
    return value


@jit
def store_upto(base, place, value, end, count):
    """base[place] = value below ``count``."""
    if end <= count:
        tl.store(base + place, value)
    else:
        tl.store(base + place, value, mask=place < count)


@jit
def magnitude(value):
    """int32 that order like |value|; what is not finite is INFINITE or above."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@jit
def words_of(counter, low, high, step, stream):
    """The four Philox words of int64 counters."""
    zero = (counter * 0).to(tl.uint32)
    return tl.philox_impl(
        (counter & 0xFFFFFFFF).to(tl.uint32),
        (counter >> 32).to(tl.uint32),
        (zero + step).to(tl.uint32),
        (zero + stream).to(tl.uint32),
        (zero + low).to(tl.uint32),
        (zero + high).to(tl.uint32),
    )


@jit
def uniform(start, low, high, step, stream, turn, BLOCK: tl.constexpr):
    """fp32 ``[BLOCK]``: philox.uniform of the elements from ``start``, a multiple of 512."""
    tiles: tl.constexpr = BLOCK // 512
    counter = start // 512 * 128 + tl.arange(0, tiles * 128)
    a, b, c, d = words_of(counter, low, high, step, stream)
    # word w of counter i belongs to element w * 128 + i of its tile
    words = tl.join(tl.join(a, b), tl.join(c, d))
    words = tl.reshape(words, [tiles, 128, 2, 2])
    words = tl.reshape(tl.permute(words, [0, 3, 2, 1]), [BLOCK])
    return (((words >> 8).to(tl.int32) + turn) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08


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
def unpack4(packed, BLOCK: tl.constexpr):
    """int32 ``[BLOCK]`` of uint8 ``[BLOCK / 2]``."""
    wide = packed.to(tl.int32)
    return tl.reshape(tl.join(wide & 15, wide >> 4), [BLOCK])


@jit
def store_plane(base, first, codes, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The low WIDTH bits of int32 codes ``[BLOCK]``, packed, from element ``first`` of a plane (see ``packing``)."""
    each: tl.constexpr = 8 // WIDTH
    part = tl.reshape(codes & ((1 << WIDTH) - 1), [BLOCK // each, each])
    byte = tl.sum(part << (tl.arange(0, each) * WIDTH)[None, :], 1)
    tl.store(base + first // each + tl.arange(0, BLOCK // each), byte.to(tl.uint8))


@jit
def load_plane(base, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """int32 ``[BLOCK]``: the inverse."""
    each: tl.constexpr = 8 // WIDTH
    byte = tl.load(base + first // each + tl.arange(0, BLOCK // each)).to(tl.int32)
    return tl.reshape((byte[:, None] >> (tl.arange(0, each) * WIDTH)[None, :]) & ((1 << WIDTH) - 1), [BLOCK])


@jit
def load_levels(codes, first, count, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """fp32 levels ``[BLOCK]`` of packed codes from element ``first``."""
    if BITS == 4:
        place = first // 2 + tl.arange(0, BLOCK // 2)
        level = unpack4(load_upto(codes, place, (first + BLOCK) // 2, (count + 1) // 2, 0x88), BLOCK)
    else:
        level = load_upto(codes, first + tl.arange(0, BLOCK), first + BLOCK, count, 128).to(tl.int32)
    return (level - (1 << (BITS - 1))).to(tl.float32)


@jit
def store_group(
    x, first, count, codes, steps, flag, low, high, step, turn,
    GROUP: tl.constexpr, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantise ``[BLOCK]`` values in groups and store their codes and steps; returns what they decode to."""
    groups: tl.constexpr = BLOCK // GROUP
    top: tl.constexpr = (1 << (BITS - 1)) - 1
    rows = tl.reshape(x, [groups, GROUP])
    largest = tl.max(magnitude(rows), 1)
    tl.store(flag, 1, mask=tl.max(largest, 0) >= INFINITE)
    code = step_code(largest.to(tl.float32, bitcast=True), top, STOCHASTIC)
    unit = tl.broadcast_to(step_value(code)[:, None], [groups, GROUP])
    u = rows
    if STOCHASTIC:
        u = tl.reshape(uniform(first, low, high, step, 0, turn, BLOCK), [groups, GROUP])
    level = tl.reshape(levels_of(rows, unit, u, top, STOCHASTIC), [BLOCK])
    which = first // GROUP + tl.arange(0, groups)
    tl.store(steps + which, code.to(tl.int16), mask=which * GROUP < count)
    if BITS == 4:
        place = first // 2 + tl.arange(0, BLOCK // 2)
        even, odd = tl.split(tl.reshape(level, [BLOCK // 2, 2]))
        odd = tl.where(place * 2 + 1 < count, odd, 0)
        store_upto(codes, place, (even | (odd << 4)).to(tl.uint8), (first + BLOCK) // 2, (count + 1) // 2)
    else:
        store_upto(codes, first + tl.arange(0, BLOCK), level.to(tl.uint8), first + BLOCK, count)
    return tl.reshape((level - (top + 1)).to(tl.float32), [groups, GROUP]) * unit


@jit
def group_encode(
    x, codes, steps, flag, count: tl.int64, low: tl.uint32, high: tl.uint32, step: tl.uint32, turn: tl.int32,
    GROUP: tl.constexpr, BITS: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """int4 and int8: one read of ``x``, codes and 16-bit steps out."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    value = load_upto(x, first + tl.arange(0, BLOCK), first + BLOCK, count, 0.0).to(tl.float32)
    store_group(value, first, count, codes, steps, flag, low, high, step, turn, GROUP, BITS, STOCHASTIC, BLOCK)


@jit
def group_decode(
    codes, steps, out, count: tl.int64, weight: tl.float32,
    GROUP: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = level * step, or out += (level * step) * weight."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    level = load_levels(codes, first, count, BITS, BLOCK)
    which = first // GROUP + tl.arange(0, BLOCK // GROUP)
    unit = step_value(tl.load(steps + which, mask=which * GROUP < count, other=0).to(tl.int32))
    value = tl.reshape(tl.reshape(level, [BLOCK // GROUP, GROUP]) * unit[:, None], [BLOCK])
    if ADD:
        value = load_upto(out, place, first + BLOCK, count, 0.0) + value * weight
    store_upto(out, place, value, first + BLOCK, count)
