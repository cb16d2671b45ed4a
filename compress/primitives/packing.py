"""Bit packing: codes of 1 to 8 bits as planes of 1, 2, 4 and 8 bits, each plane padded to whole bytes.

For example, 5 bits are a plane of the 4 low bits and a plane of the high bit. A plane is packed by shifts and ORs of
whole bytes, and no code crosses a byte boundary. Inside a byte the first code has the low bits.
"""

from __future__ import annotations

import torch

from ..cpu import dispatch as fast
from ..errors import CodecError


def planes(bits: int) -> list[tuple[int, int]]:
    """(shift, width) of each plane, low bits first, widest first: 7 -> [(0, 4), (4, 2), (6, 1)]."""
    out, shift = [], 0
    for width in (8, 4, 2, 1):
        if bits & width:
            out.append((shift, width))
            shift += width
    return out


def packed_size(count: int, bits: int) -> int:
    """Bytes of ``count`` codes of ``bits`` bits."""
    return sum(-(-count * width // 8) for _, width in planes(bits))


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 ``[n]`` codes below 2^bits -> uint8 ``[packed_size(n, bits)]``."""
    if bits == 8:
        return codes
    if codes.device.type == "cpu" and fast.worth(codes.numel()):
        return fast.pack(codes, bits)
    parts = []
    for shift, width in planes(bits):
        each = 8 // width
        plane = (codes >> shift) & ((1 << width) - 1) if (shift, width) != (0, bits) else codes
        if plane.numel() % each:
            plane = torch.nn.functional.pad(plane, (0, each - plane.numel() % each))
        plane = plane.view(-1, each)
        byte = plane[:, 0].clone()
        for lane in range(1, each):
            byte |= plane[:, lane] << (lane * width)
        parts.append(byte)
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def unpack(packed: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """The inverse of ``pack``: uint8 ``[count]``. CodecError if the size is not ``packed_size(count, bits)``."""
    if packed.numel() != packed_size(count, bits):
        raise CodecError(f"{packed.numel()} bytes do not hold {count} codes of {bits} bits")
    if bits == 8:
        return packed
    if packed.device.type == "cpu" and fast.worth(count):
        return fast.unpack(packed, count, bits)
    out: torch.Tensor | None = None
    at = 0
    for shift, width in planes(bits):
        each, size = 8 // width, -(-count * width // 8)
        byte = packed[at : at + size]
        at += size
        codes = torch.empty((size, each), dtype=torch.uint8, device=packed.device)
        for lane in range(each):
            codes[:, lane] = (byte >> (lane * width)) & ((1 << width) - 1)
        plane = codes.view(-1)[:count]
        out = plane if out is None else out | (plane << shift)
    assert out is not None
    return out


def put(packed: torch.Tensor, codes: torch.Tensor, bits: int, count: int, first: int) -> None:
    """Pack codes into ``packed``, which has ``count`` elements, from element ``first`` (a multiple of 8) on."""
    at = 0
    for shift, width in planes(bits):
        part = pack((codes >> shift) & ((1 << width) - 1), width)
        place = at + first * width // 8
        packed[place : place + part.numel()] = part
        at += -(-count * width // 8)


def taken(packed: torch.Tensor, size: int, bits: int, count: int, first: int) -> torch.Tensor:
    """The packed bytes of elements ``first`` to ``first + size`` out of ``count``, for ``unpack``."""
    parts, at = [], 0
    for _, width in planes(bits):
        place = at + first * width // 8
        parts.append(packed[place : place + -(-size * width // 8)])
        at += -(-count * width // 8)
    return unpack(torch.cat(parts), size, bits)
