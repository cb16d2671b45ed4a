"""Triton kernels of ``cocktail``: gather the offered differences, find the exact k-th largest, keep and quantise
values.

The threshold is found digit by digit of the magnitudes' bits (11, 10 and 10 bits): a histogram of the magnitudes that
agree with the digits so far gives the next digit; torch operations on the device pick it. All arithmetic is on
integers, so the result is that of ``selection.largest``: exactly k, ties by the lowest index.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton.language as tl

from .kernels import INFINITE, jit, load_levels, load_upto, magnitude, step_value, store_group

BINS = tl.constexpr(2048)
NONE = tl.constexpr(2047)  # the bin of excluded values; no finite value has these 11 bits


@jit
def positions(runs, place, inside, RUN: tl.constexpr):
    """Indices in the vector (int64) of places among the offered."""
    return tl.load(runs + place // RUN, mask=inside, other=0) * RUN + place % RUN


@jit
def gather_delta(
    x, g, runs, out, counts, elements: tl.int64, DELTA: tl.constexpr, RUN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The offered elements of x - g (of x without DELTA), in order, 0 for what is not finite, and the histogram of
    their first digit; only the offered cache lines are read."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    at = positions(runs, place, inside, RUN)
    value = tl.load(x + at, mask=inside, other=0.0)
    if DELTA:
        value = value - tl.load(g + at, mask=inside, other=0.0)
    value = tl.where(magnitude(value) < INFINITE, value, 0.0)  # else more than k would be above the k-th largest
    tl.store(out + place, value, mask=inside)
    digit = tl.where(inside, magnitude(value) >> 20, NONE)
    tl.atomic_add(counts + tl.arange(0, BINS), tl.histogram(digit, BINS), sem="relaxed")


@jit
def count_digit(values, prefix, counts, elements: tl.int64, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """Adds to ``counts`` the histogram of ten bits, from bit SHIFT, of magnitudes whose bits above are ``prefix``."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    order = magnitude(load_upto(values, place, tl.program_id(0).to(tl.int64) * BLOCK + BLOCK, elements, 0.0))
    agrees = (place < elements) & (order >> (SHIFT + 10) == tl.load(prefix))
    digit = tl.where(agrees, (order >> SHIFT) & 1023, NONE)
    tl.atomic_add(counts + tl.arange(0, BINS), tl.histogram(digit, BINS), sem="relaxed")


@jit
def count_kept(values, least, above, equal, elements: tl.int64, BLOCK: tl.constexpr):
    """How many magnitudes of each program's elements are above ``least``, and how many are equal to it."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    order = magnitude(load_upto(values, place, tl.program_id(0).to(tl.int64) * BLOCK + BLOCK, elements, 0.0))
    limit = tl.load(least)
    tl.store(above + tl.program_id(0), tl.sum((inside & (order > limit)).to(tl.int32), 0))
    tl.store(equal + tl.program_id(0), tl.sum((inside & (order == limit)).to(tl.int32), 0))


@jit
def compact(values, least, ties, above, equal, index, kept, elements: tl.int64, BLOCK: tl.constexpr):
    """Places (int32) and values of what is above ``least``, and of the first ``ties`` that are equal to it; above,
    equal: how many of each come before each program."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < elements
    value = load_upto(values, place, tl.program_id(0).to(tl.int64) * BLOCK + BLOCK, elements, 0.0)
    order, limit, most = magnitude(value), tl.load(least), tl.load(ties)
    tie = (inside & (order == limit)).to(tl.int32)
    before = tl.load(equal + tl.program_id(0))
    chosen = (tie == 1) & (before + tl.cumsum(tie, 0) <= most)
    chosen = chosen | (inside & (order > limit))
    start = tl.load(above + tl.program_id(0)) + tl.minimum(before, most)
    to = start + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(index + to, place.to(tl.int32), mask=chosen)
    tl.store(kept + to, value, mask=chosen)


@jit
def quantize_kept(
    kept, index, runs, local, codes, steps, flag, count: tl.int64,
    UPDATE: tl.constexpr, RUN: tl.constexpr, BUCKET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantise values to 4-bit linear codes in buckets; with UPDATE, local[position] -= decoded: the sent values leave
    the local weights, and the rounding error stays in them."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    inside = place < count
    value = load_upto(kept, place, first + BLOCK, count, 0.0)
    decoded = tl.reshape(
        store_group(value, first, count, codes, steps, flag, 0, 0, 0, 0, BUCKET, 4, False, BLOCK), [BLOCK]
    )
    if UPDATE:
        at = positions(runs, tl.load(index + place, mask=inside, other=0).to(tl.int64), inside, RUN)
        tl.store(local + at, tl.load(local + at, mask=inside, other=0.0) - decoded, mask=inside)


@jit
def sparse_add(
    out, runs, index, codes, steps, kept: tl.int64, weight: tl.float32,
    RUN: tl.constexpr, BUCKET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[position] += (level * unit) * weight, 4-bit linear values; positions don't repeat."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    inside = place < kept
    level = load_levels(codes, first, kept, 4, BLOCK)
    unit = step_value(tl.load(steps + place // BUCKET, mask=inside, other=0).to(tl.int32))
    at = positions(runs, tl.load(index + place, mask=inside, other=0).to(tl.int64), inside, RUN)
    value = tl.load(out + at, mask=inside, other=0.0) + (level * unit) * weight
    tl.store(out + at, value, mask=inside)
