"""The loops of the sparse codecs: finding the largest offered values, Rice codes, adding a few values to many."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .base import jit, largest_bits, pack, unpack


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def trailing_zeros(_: Any, word: Any) -> Any:
    """The number of trailing zero bits of a nonzero uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def prefetch(_: Any, array: Any, place: Any) -> Any:
    """Prefetch the cache line of ``array[place]`` for writing, without waiting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [address, ir.Constant(number, 1), ir.Constant(number, 3), ir.Constant(number, 1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@jit
def sample(bits: Any, runs: Any, run: int, out: Any) -> None:
    """|values| (as the int32 that order like them) of an element of each of len(out) evenly spaced runs."""
    spacing = len(runs) / len(out)
    for i in range(len(out)):
        place = runs[np.int64(i * spacing)] * run + ((i * 37) & (run - 1))
        out[i] = bits[min(place, len(bits) - 1)] & 0x7FFFFFFF


@jit
def near(bits: Any, runs: Any, run: int, least: Any, places: Any, values: Any) -> int:
    """The offered values of magnitude at least ``least``: their indices among the offered, and their bits as int32.

    One pass over the whole vector. Returns their number; -1 if a value is not finite, -2 if the buffers are too short.
    """
    at, kept, largest, place = 0, 0, np.int32(0), np.int32(0)
    for r in range(len(runs)):
        start = runs[r] * run
        stop = min(start + run, len(bits))
        largest = largest_bits(bits[at:stop], largest)
        at = stop
        row = bits[start:stop]
        if kept + run > len(places):
            return -2
        for j in range(len(row)):
            places[kept] = place
            values[kept] = row[j]
            place += np.int32(1)
            kept += np.int32(row[j] & 0x7FFFFFFF) >= least
    largest = largest_bits(bits[at:], largest)
    return -1 if largest >= 0x7F800000 else kept


@jit
def count_from(values: Any, least: Any) -> int:
    """How many |values| are at least ``least``."""
    count = 0
    for i in range(len(values)):
        count += np.int32(values[i] & 0x7FFFFFFF) >= least
    return count


@jit
def threshold(values: Any, low: Any, k: int) -> Any:
    """A threshold that exactly k of |values| reach, or, with ties, the k-th largest. All are at least ``low``. It is
    found by counting at points of a bracket: by interpolation, and every third time in the middle."""
    above, total, turn, middle = 0, len(values), 0, low
    high = np.int64(largest_bits(values, np.int32(0))) + 1
    while high - low > 1:
        # at least k are >= low, fewer than k are >= high
        turn += 1
        share = (total - k) / (total - above)
        step = np.int64((high - low) * share) if turn % 3 else (high - low) // 2
        middle = low + min(max(step, 1), high - low - 1)
        count = count_from(values, np.int32(middle))
        if count == k:
            return middle
        if count > k:
            low, total = middle, count
        else:
            high, above = middle, count
    return low


@jit
def keep(places: Any, values: Any, least: Any) -> int:
    """Move the elements of magnitude at least ``least`` to the front. Returns their number."""
    count = 0
    for i in range(len(values)):
        places[count] = places[i]
        values[count] = values[i]
        count += np.int32(values[i] & 0x7FFFFFFF) >= least
    return count


@jit
def gap_sum(positions: Any, low: int) -> Any:
    """The sum of gap >> low over the gaps before rising ``positions``."""
    total = np.int64(0)
    if len(positions):
        total += positions[0] >> low
    after, before = positions[1:], positions[:-1]
    for i in range(len(after)):
        total += np.int32(after[i] - before[i] - 1) >> low
    return total


@jit
def rice(positions: Any, low: int, unary: Any, rest: Any) -> None:
    """Rice codes of the gaps before ``positions``, low of 0, 1, 2, 4. unary: zeroed uint64, bits from the lowest; rest:
    uint8, the low bits packed."""
    at, before, full, word = np.int64(0), np.int64(-1), np.int64(0), np.uint64(0)
    for i in range(len(positions)):
        position = np.int64(positions[i])
        at += (position - before - 1) >> low
        before = position
        if at >> 6 != full:
            unary[full] = word
            word, full = np.uint64(0), at >> 6
        word |= np.uint64(1) << np.uint64(at & 63)
        at += 1
    if len(positions):
        unary[full] = word
    codes = np.zeros(512, np.uint8)
    for start in range(0, len(positions) if low else 0, 512):
        part = positions[start : start + 512]
        codes[0] = (part[0] - (positions[start - 1] if start else -1) - 1) & ((1 << low) - 1)
        after, before_, to = part[1:], part[:-1], codes[1:]
        for i in range(len(after)):
            to[i] = np.uint8(after[i] - before_[i] - 1) & np.uint8((1 << low) - 1)
        codes[len(part) :] = 0
        pack(codes, low, rest[start * low // 8 : (start + len(part)) * low + 7 >> 3])


@jit
def rice_back(unary: Any, rest: Any, low: int, positions: Any) -> Any:
    """Decodes into ``positions``. Returns (number of ones in ``unary``, position of the last one, last decoded
    position). If there are more than fit, it stops with a count of one more."""
    count, before, mask, at = 0, np.int64(-1), (1 << low) - 1, np.int64(-1)
    for w in range(len(unary)):
        word = unary[w]
        while word:
            if count == len(positions):
                return count + 1, at, before
            bit = np.int64(w) * 64 + np.int64(trailing_zeros(word))
            word &= word - np.uint64(1)
            gap = (bit - at - 1) << low
            at = bit
            if low:
                place = count * low
                gap |= (rest[place >> 3] >> (place & 7)) & mask
            before += gap + 1
            positions[count] = before
            count += 1
    return count, at, before


@jit
def add_sparse(out: Any, places: Any, runs: Any, run: int, levels: Any, units: Any, bucket: int, weight: Any) -> None:
    """out[position] += (level * unit) * weight for 4-bit levels in buckets; places among the offered runs."""
    shift = 0
    while 1 << shift < run:
        shift += 1
    where, codes = np.empty((2, bucket), np.int64), np.empty(bucket, np.uint8)
    values = np.empty(bucket, np.float32)
    for b in range(-1, len(units)):
        part, to = places[(b + 1) * bucket : (b + 2) * bucket], where[(b + 1) & 1]
        for i in range(len(part)):
            place = np.int64(part[i])
            to[i] = (runs[place >> shift] << shift) + (place & (run - 1))
            prefetch(out, to[i])
        if b >= 0:
            size, unit, to = min(bucket, len(places) - b * bucket), units[b], where[b & 1]
            unpack(levels[b * bucket // 2 : b * bucket // 2 + (size + 1) // 2], 4, codes)
            for i in range(size):
                value = np.float32(np.int32(codes[i]) - np.int32(8)) * unit
                values[i] = value * weight
            for i in range(size):
                out[to[i]] += values[i]
