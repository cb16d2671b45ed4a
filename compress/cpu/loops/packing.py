"""Codes of any number of bits as planes of 8, 4, 2 and 1, packed and unpacked."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import jit, pack, unpack


@jit
def planes(codes: Any, bits: int, packed: Any, count: int, first: int) -> None:
    """The codes of elements ``first`` on, packed into the planes of a vector of ``count``."""
    planes_in(codes, bits, packed, count, first, np.empty((len(codes) + 7) // 8 * 8, np.uint8))


@jit
def taken(codes: Any, shift: int, width: int, part: Any) -> None:
    """part = code >> shift & (2^width - 1), for 8 codes at once in a 64-bit word."""
    whole = len(codes) // 8 * 8
    words, to = codes[:whole].view(np.uint64), part[:whole].view(np.uint64)
    mask, by = np.uint64(0x0101010101010101) * np.uint64((1 << width) - 1), np.uint64(shift)
    for i in range(len(words)):
        to[i] = words[i] >> by & mask
    for i in range(whole, len(codes)):
        part[i] = codes[i] >> shift & ((1 << width) - 1)


@jit
def put(part: Any, shift: int, codes: Any) -> None:
    """code |= part << shift, which is below 256."""
    whole = len(codes) // 8 * 8
    words, to, by = part[:whole].view(np.uint64), codes[:whole].view(np.uint64), np.uint64(shift)
    for i in range(len(words)):
        to[i] |= words[i] << by
    for i in range(whole, len(codes)):
        codes[i] |= part[i] << shift


@jit
def planes_in(codes: Any, bits: int, packed: Any, count: int, first: int, part: Any) -> None:
    """As ``planes``; part: a buffer for as many codes, rounded up to 8."""
    base, shift = 0, 0
    for i in range(len(codes), (len(codes) + 7) // 8 * 8):
        part[i] = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            start = base + first * width // 8
            to = packed[start : start + (len(codes) * width + 7) // 8]
            if bits == width and len(codes) % 8 == 0:
                pack(codes, width, to)
            else:
                taken(codes, shift, width, part)
                pack(part, width, to)
            base += (count * width + 7) // 8
            shift += width


@jit
def planes_back(packed: Any, bits: int, count: int, first: int, codes: Any) -> None:
    """The inverse of ``planes``."""
    if bits & (bits - 1) == 0:
        start = first * bits // 8
        unpack(packed[start : start + len(codes) * bits // 8], bits, codes)
        return
    planes_back_in(packed, bits, count, first, codes, np.empty(len(codes), np.uint8))


@jit
def planes_back_in(packed: Any, bits: int, count: int, first: int, codes: Any, part: Any) -> None:
    """As ``planes_back``; part: a buffer for as many codes."""
    base, shift = 0, 0
    codes[:] = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            start = base + first * width // 8
            unpack(packed[start : start + len(codes) * width // 8], width, part)
            put(part, shift, codes)
            base += (count * width + 7) // 8
            shift += width


@jit
def pack_all(codes: Any, bits: int, packed: Any) -> None:
    """``packing.pack``."""
    for start in range(0, len(codes), 4096):
        planes(codes[start : start + 4096], bits, packed, len(codes), start)


@jit
def unpack_all(packed: Any, bits: int, codes: Any) -> None:
    """``packing.unpack``."""
    part = np.empty(4096, np.uint8)
    for start in range(0, len(codes), 4096):
        to = codes[start : start + 4096]
        planes_back(packed, bits, len(codes), start, part[: (len(to) + 7) // 8 * 8])
        for i in range(len(to)):
            to[i] = part[i]
