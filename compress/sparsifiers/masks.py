"""Sets of positions in few bits: a bitmap, or Rice-coded gaps, whichever is shorter.

Rice coding of a gap g with parameter k: g >> k in unary, then the k low bits. The two halves are separate arrays (all
unary codes, then all low bits), so that coding and decoding are a few whole-array operations. For random positions the
size is within 5 % of the entropy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ..blobs.wire import Reader, varint
from ..cpu import dispatch as fast
from ..cpu.calls import sparse as picked
from ..errors import CodecError
from ..primitives.packing import pack, packed_size, unpack

BITMAP = 31
ALL = 30
MAX_LOW = 24
_WHOLE = (0, 1, 2, 4)  # widths of low parts within a byte, which the compiled loops support


def encode(positions: np.ndarray, size: int, how: str = "auto") -> bytes:
    """positions: rising int64 below ``size``. how: auto, bitmap or rice."""
    count = len(positions)
    if count == size:
        return bytes([ALL])
    bitmap_bytes = -(-size // 8)
    if how != "bitmap":
        narrow = positions.astype(np.int32, copy=False) if size < 1 << 31 else positions
        gaps = None if fast.worth_few(count) else _gaps(narrow)
        low, unary_bits = best(count, size, lambda low: _skipped(narrow, gaps, low))
        rice_bytes = 4 + -(-unary_bits // 8) + sum(packed_size(count, bits) for bits in pieces(low))
        if how == "rice" or rice_bytes < bitmap_bytes:
            return _rice(narrow, gaps, low, unary_bits)
    bits = np.zeros(size, np.uint8)
    bits[positions] = 1
    return bytes([BITMAP]) + np.packbits(bits, bitorder="little").tobytes()


def decode(reader: Reader, count: int, size: int) -> np.ndarray:
    """The ``count`` positions below ``size``: rising, int64 (int32 from the compiled loops)."""
    how = reader.byte()
    if how == ALL:
        if count != size:
            raise CodecError("the blob's mask says that everything is there, its size does not")
        return np.arange(size)
    if how == BITMAP:
        bits = np.unpackbits(np.frombuffer(reader.take(-(-size // 8)), np.uint8), bitorder="little")
        positions = np.flatnonzero(bits.view(bool))
        if len(positions) != count or (count and positions[-1] >= size):
            raise CodecError("the blob's mask has another number of positions than its values")
        return positions
    if how > MAX_LOW:
        raise CodecError(f"the blob's mask is of unknown kind {how}")
    unary_bits = reader.varint(count + (size >> how) + 1)
    unary_bytes = reader.take(-(-unary_bits // 8))
    if how in _WHOLE and fast.worth_few(count):
        found = picked.rice_back(unary_bytes, reader.take(packed_size(count, how)), how, unary_bits, count, size)
        if found is None:
            raise CodecError("the blob's mask is not of as many positions below its size as it has values")
        return found
    unary = np.unpackbits(np.frombuffer(unary_bytes, np.uint8), bitorder="little")
    ones = np.flatnonzero(unary.view(bool))
    if len(ones) != count or (count and ones[-1] != unary_bits - 1):
        raise CodecError("the blob's mask has another number of positions than its values")
    gaps = _gaps(ones)
    gaps <<= how
    shift = 0
    for bits_ in pieces(how):
        packed = np.frombuffer(reader.take(packed_size(count, bits_)), np.uint8)
        gaps |= unpack(torch.from_numpy(packed.copy()), count, bits_).numpy().astype(np.int64) << shift
        shift += bits_
    gaps += 1
    positions = np.cumsum(gaps)
    positions -= 1
    if count and positions[-1] >= size:
        raise CodecError("the blob's mask has a position beyond the vector")
    return positions


def _gaps(positions: np.ndarray) -> np.ndarray:
    """How many positions are skipped before each."""
    out = np.empty_like(positions)
    if len(positions):
        out[0] = positions[0]
        np.subtract(positions[1:], positions[:-1], out=out[1:])
        out[1:] -= 1
    return out


def pieces(low: int) -> list[int]:
    """Low parts of more than 8 bits are packed 8 bits at a time."""
    return [min(8, low - at) for at in range(0, low, 8)]


def candidates(count: int, size: int) -> set[int]:
    """The Rice parameters k that may be best, estimated from the mean gap."""
    mean = max((size - count) / count, 2.0**-30)
    guess = min(MAX_LOW, max(0, int(np.floor(np.log2(max(mean * 0.7, 1.0)) + 0.5))))
    return {guess, max(0, guess - 1)}


def best(count: int, size: int, skipped: Callable[[int], int]) -> tuple[int, int]:
    """(k, unary bits) with the fewest bits in total, among ``candidates``; ``skipped(k)``: the sum of gap >> k."""
    if not count:
        return 0, 0
    best: tuple[int, int, int] | None = None
    for low in candidates(count, size):
        unary = count + skipped(low)
        if best is None or unary + count * low < best[0]:
            best = (unary + count * low, low, unary)
    assert best is not None
    return best[1], best[2]


def _skipped(positions: np.ndarray, gaps: np.ndarray | None, low: int) -> int:
    """The sum of gap >> low."""
    if low == 0:
        return int(positions[-1]) + 1 - len(positions)
    return picked.gap_sum(positions, low) if gaps is None else int((gaps >> low).sum(dtype=np.int64))


def _rice(positions: np.ndarray, gaps: np.ndarray | None, low: int, unary_bits: int) -> bytes:
    if low in _WHOLE and fast.worth_few(len(positions)):
        unary_bytes, rest = picked.rice(positions, low, unary_bits)
        return b"".join([bytes([low]), varint(unary_bits), unary_bytes, rest])
    if gaps is None:
        gaps = _gaps(positions)
    ends = np.cumsum((gaps >> low) + 1, dtype=gaps.dtype if unary_bits < 1 << 31 else np.int64)
    ends -= 1
    unary = np.zeros(unary_bits, np.uint8)
    unary[ends] = 1
    parts = [bytes([low]), varint(unary_bits), np.packbits(unary, bitorder="little").tobytes()]
    shift = 0
    for bits in pieces(low):
        piece = (gaps >> shift).astype(np.uint8) & np.uint8((1 << bits) - 1)
        parts.append(pack(torch.from_numpy(piece), bits).numpy().tobytes())
        shift += bits
    return b"".join(parts)
