"""Sums in the order of ``primitives.sums``, the sizes of groups, and conversions of whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit

CHUNK = 1024


@jit
def halved(values: Any) -> Any:
    """The sum of 2^k fp64 ``values``, by adding halves; overwrites them."""
    count = len(values)
    while count > 1:
        half = count // 2
        low, high = values[:half], values[half:count]
        for i in range(half):
            low[i] += high[i]
        count = half
    return values[0]


@jit
def chunk(part: Any, what: int, room: Any) -> Any:
    """The sum of the terms (``what``) of fp32 ``part``. room: an fp64 buffer of a power of two, at least as long."""
    count = len(part)
    if what == 0:
        for i in range(count):
            room[i] = np.float64(np.abs(part[i]))
    elif what == 1:
        for i in range(count):
            value = np.float64(part[i])
            room[i] = value * value
    elif what == 2:
        for i in range(count):
            room[i] = np.float64(max(-part[i], np.float32(0.0)))
    elif what == 3:
        for i in range(count):
            room[i] = np.float64(max(part[i], np.float32(0.0)))
    else:
        for i in range(count):
            room[i] = np.float64(part[i])
    room[count:] = 0.0
    return halved(room)


@jit
def sums(x: Any, size: int, what: int, out: Any) -> None:
    """fp64 sums of each ``size`` of flat fp32 ``x``; what: as in ``primitives.sums``."""
    width, chunks = 1, 1
    while width < min(size, CHUNK):
        width *= 2
    while chunks * width < size:
        chunks *= 2
    room, parts = np.empty(width, np.float64), np.empty(chunks, np.float64)
    for r in range(len(out)):
        row = x[r * size : min(len(x), (r + 1) * size)]
        at = 0
        for start in range(0, len(row), width):
            parts[at] = chunk(row[start : start + width], what, room)
            at += 1
        parts[at:] = 0.0
        out[r] = halved(parts)


@jit
def ends(bits: Any) -> Any:
    """(least, largest) fp32 value, as int32 numbers of the same order. bits: the values' bits as int32, not empty."""
    least, largest = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(len(bits)):
        value = np.int32(bits[i] ^ np.int32(np.int32(bits[i] >> 31) & np.int32(0x7FFFFFFF)))
        least, largest = min(least, value), max(largest, value)
    return least, largest


@jit
def affine(x: Any, size: int, scales: Any, zeros: Any, codes: Any) -> None:
    """Codes of 0 to 255 with a scale and a zero point for each ``size`` of flat fp32 ``x``."""
    magic, whole = np.float32(12582912.0), np.float32(255.0)
    one = np.empty(2, np.int32)
    real = one.view(np.float32)
    for r in range(len(scales)):
        row, to = x[r * size : (r + 1) * size], codes[r * size : (r + 1) * size]
        least, largest = ends(row.view(np.int32))
        one[0] = least ^ np.int32((least >> 31) & np.int32(0x7FFFFFFF))
        one[1] = largest ^ np.int32((largest >> 31) & np.int32(0x7FFFFFFF))
        low, high = min(real[0], np.float32(0.0)), max(real[1], np.float32(0.0))
        scale = high / whole - low / whole
        safe = scale if scale > np.float32(0.0) else np.float32(1.0)
        zero = min(max(-((low / safe + magic) - magic), np.float32(0.0)), whole)
        scales[r], zeros[r] = scale, np.uint8(zero)
        for i in range(len(row)):
            level = ((row[i] / safe + magic) - magic) + zero
            to[i] = np.uint8(np.int32(min(max(level, np.float32(0.0)), whole)))


@jit
def affine_back(codes: Any, size: int, scales: Any, zeros: Any, weight: Any, adding: bool, out: Any) -> None:
    """out = (code - zero) * scale, clamped to fp32's range, or out += that * weight."""
    most = np.float32(3.4028234663852886e38)
    for r in range(len(scales)):
        row, to = codes[r * size : (r + 1) * size], out[r * size : (r + 1) * size]
        scale, zero = scales[r], np.float32(zeros[r])
        if adding:
            for i in range(len(to)):
                value = min(max((np.float32(row[i]) - zero) * scale, -most), most)
                to[i] += value * weight
        else:
            for i in range(len(to)):
                to[i] = min(max((np.float32(row[i]) - zero) * scale, -most), most)


@jit
def bfloats(x: Any, out: Any) -> Any:
    """out: uint16 bits of bfloat16, rounded to nearest even from fp32 bits ``x`` (int32). Returns the largest of the
    bits without sign, which shows whether all values are finite."""
    largest = np.int32(0)
    for i in range(len(x)):
        word = np.uint32(x[i])
        largest = max(largest, np.int32(x[i] & np.int32(0x7FFFFFFF)))
        odd = np.uint32(np.uint32(word >> np.uint32(16)) & np.uint32(1))
        out[i] = np.uint16(np.uint32(np.uint32(word + np.uint32(0x7FFF)) + odd) >> np.uint32(16))
    return largest


@jit
def signs(x: Any, packed: Any) -> None:
    """A packed bit for each fp32 value: 1 if it is not below zero; unused bits of the last byte are 0."""
    flags = np.empty(4096, np.uint8)
    for start in range(0, len(x), 4096):
        part = x[start : start + 4096]
        for i in range(len(part)):
            flags[i] = part[i] >= np.float32(0.0)
        for i in range(len(part), (len(part) + 7) // 8 * 8):
            flags[i] = 0
        to = packed[start // 8 : (start + len(part) + 7) // 8]
        for i in range(len(to)):
            byte = flags[8 * i]
            for j in range(1, 8):
                byte |= np.uint8(flags[8 * i + j] << j)
            to[i] = byte
