"""``masks`` on a device: encodes positions that lie on a device, with the same bytes, and decodes to a device.

The host does not wait for the device. The ends of gaps in the unary half, and the position of the n-th set bit, are
both running sums, so all work is whole-array operations. The host chooses the shorter form, after a single copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..blobs.pieces import Made, to_device
from ..blobs.wire import Reader, varint
from ..errors import CodecError
from ..primitives.packing import pack, packed_size, planes, unpack
from . import masks


def encode(positions: torch.Tensor, size: int, how: str = "auto") -> bytes | Made:
    """As ``masks.encode``, for rising positions below ``size`` on a device."""
    count = positions.numel()
    if count == size:
        return bytes([masks.ALL])
    lows = sorted(masks.candidates(count, size)) if count and how != "bitmap" else []
    gaps = positions.to(torch.int64)
    gaps = torch.diff(gaps, prepend=gaps.new_full((1,), -1)) - 1
    sums = [(gaps >> low).sum().view(1) for low in lows]
    parts = [torch.cat(sums)] if sums else []
    for low in lows:
        ends = torch.cumsum((gaps >> low) + 1, 0) - 1
        parts.append(_bits(ends, most(count, size, low)))
        parts += [pack((gaps >> at & (1 << bits) - 1).to(torch.uint8), bits) for at, bits in _low_planes(low)]
    bitmap = how == "bitmap" or not count or any(most(count, size, low) + count * low > size - 64 for low in lows)
    if bitmap:
        parts.append(_bits(positions.to(torch.int64), size))
    return Made(parts, lambda found: _chosen(found, lows, count, size, how))


def most(count: int, size: int, low: int) -> int:
    """The most unary bits that ``count`` gaps can take."""
    return count + (size - count >> low)


def _low_planes(low: int) -> list[tuple[int, int]]:
    """(shift, width) of the low parts of a gap."""
    return [(8 * place, bits) for place, bits in enumerate(masks.pieces(low))]


def _bits(places: torch.Tensor, size: int) -> torch.Tensor:
    """uint8: ``size`` packed bits, 1 at ``places``."""
    bits = torch.zeros(-(-size // 8) * 8, dtype=torch.uint8, device=places.device)
    return pack(bits.scatter_(0, places, torch.ones_like(places, dtype=torch.uint8)), 1)


def _chosen(found: Sequence[memoryview], lows: list[int], count: int, size: int, how: str) -> bytes:
    if how != "bitmap" and count:
        skipped = dict(zip(lows, np.frombuffer(found[0], np.int64).tolist(), strict=True))
        low, unary_bits = masks.best(count, size, skipped.__getitem__)
        rest = sum(packed_size(count, bits) for bits in masks.pieces(low))
        if how == "rice" or 4 + -(-unary_bits // 8) + rest < -(-size // 8):
            at = 1 + sum(1 + len(masks.pieces(other)) for other in lows[: lows.index(low)])
            unary, *planes = found[at : at + 1 + len(masks.pieces(low))]
            return b"".join([bytes([low]), varint(unary_bits), unary[: -(-unary_bits // 8)], *planes])
    elif how == "rice" or (how == "auto" and -(-size // 8) > 4):
        return bytes([0]) + varint(0)
    return bytes([masks.BITMAP]) + bytes(found[-1])


@dataclass(frozen=True)
class Checked:
    """A mask whose bytes have been checked, and what its positions are made of."""

    how: int
    bits: memoryview
    """The bitmap, or the unary halves of the gaps."""
    low: Sequence[memoryview] = ()
    """The low parts of the gaps, as ``_low_planes`` lists them."""


def check(reader: Reader, count: int, size: int) -> Checked:
    """Read a mask of ``count`` positions below ``size``. All checks are made from the bytes, on the host; no position
    is computed.

    Raises:
        CodecError: the bytes are no such mask.
    """
    how = reader.byte()
    if how == masks.ALL:
        if count != size:
            raise CodecError("the blob's mask says that everything is there, its size does not")
        return Checked(how, memoryview(b""))
    if how == masks.BITMAP:
        data = reader.take(-(-size // 8))
        bits = int.from_bytes(data, "little")
        if bits.bit_count() != count or bits.bit_length() > size:
            raise CodecError("the blob's mask has another number of positions than its values")
        return Checked(how, data)
    if how > masks.MAX_LOW:
        raise CodecError(f"the blob's mask is of unknown kind {how}")
    unary_bits = reader.varint(count + (size >> how) + 1)
    data = reader.take(-(-unary_bits // 8))
    bits = int.from_bytes(data, "little")
    if bits.bit_count() != count or bits.bit_length() != (unary_bits if count else 0):
        raise CodecError("the blob's mask has another number of positions than its values")
    total, low = (unary_bits - count << how) + count, []
    for shift, width in _low_planes(how):
        low.append(reader.take(packed_size(count, width)))
        total += _sum(low[-1], count, width) << shift
    if total > size:
        raise CodecError("the blob's mask has a position beyond the vector")
    return Checked(how, data, low)


def decode(reader: Reader, count: int, size: int, device: torch.device) -> torch.Tensor:
    """As ``masks.decode``, int64 on a device, checked by ``check``."""
    mask = check(reader, count, size)
    if mask.how == masks.ALL:
        return torch.arange(size, device=device)
    places = _places(to_device(mask.bits, device), count)
    if mask.how == masks.BITMAP:
        return places
    gaps = torch.diff(places, prepend=places.new_full((1,), -1)) - 1 << mask.how
    for (shift, width), packed in zip(_low_planes(mask.how), mask.low, strict=True):
        gaps += unpack(to_device(packed, device), count, width).to(torch.int64) << shift
    return torch.cumsum(gaps + 1, 0) - 1


def _places(data: torch.Tensor, count: int) -> torch.Tensor:
    """int64: the positions of the ``count`` set bits of packed bits."""
    bits = unpack(data, data.numel() * 8, 1)
    rank = torch.cumsum(bits, 0, dtype=torch.int64)
    to = torch.where(bits > 0, rank - 1, count)  # all others beyond the end
    places = torch.arange(bits.numel(), device=data.device)
    return torch.empty(count + 1, dtype=torch.int64, device=data.device).scatter_(0, to, places)[:count]


@lru_cache(maxsize=8)
def _sums(width: int) -> np.ndarray:
    """The sum of the codes in each byte."""
    codes = unpack(torch.arange(256, dtype=torch.uint8), 2048 // width, width).view(256, -1)
    return np.asarray(codes.sum(1).numpy())


def _sum(packed: memoryview, count: int, width: int) -> int:
    """The sum of ``count`` codes of 1, 2, 4 or 8 bits, or of planes of them."""
    raw, total, at = np.frombuffer(packed, np.uint8), 0, 0
    for shift, bits in planes(width):
        size = -(-count * bits // 8)
        plane = raw[at : at + size].copy()
        if size and count * bits % 8:
            plane[-1] &= (1 << count * bits % 8) - 1
        total += int(np.bincount(plane, minlength=256) @ _sums(bits)) << shift
        at += size
    return total
