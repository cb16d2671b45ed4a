"""Decoding for codecs whose elements are an entry of a table times the unit of their group."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor
from ..cpu import dispatch as fast
from ..cpu.calls import tables as tabled
from ..primitives.packing import planes, unpack
from ..primitives.scales import LARGEST
from .looped import Looped, Put

_PIECE = 1 << 16
"""Elements at once on a CPU, so that torch's temporaries stay in the cache."""


@dataclass(frozen=True)
class Parts:
    """A checked body: the packed codes, the fp32 values of all codes, and the groups' fp32 units ``[groups]``."""

    packed: memoryview
    table: torch.Tensor
    units: torch.Tensor
    group: int
    bits: int


def blocks_of(x: torch.Tensor, size: int) -> torch.Tensor:
    """``[blocks, size]``, the last one padded with zeros."""
    return torch.nn.functional.pad(x, (0, -x.numel() % size)).view(-1, size)


def pieces(count: int, group: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """(start, stop) of pieces for torch operations on a CPU: whole groups, and whole bytes of codes. On other devices,
    one piece."""
    step = _PIECE // group * group if device.type == "cpu" else 0
    while step and step % 8:
        step *= 2
    step = step or (_PIECE if group >= count and device.type == "cpu" else count)
    for start in range(0, count, step):
        yield start, min(count, start + step)


def piece_of(packed: memoryview, count: int, bits: int, start: int, stop: int) -> bytes:
    """The packed codes of elements ``start`` to ``stop`` of ``count``, packed like a separate vector; start is a
    multiple of 8."""
    out, base = [], 0
    for _, width in planes(bits):
        out.append(packed[base + start * width // 8 : base + -(-stop * width // 8)])
        base += -(-count * width // 8)
    return b"".join(out)


def largest_of(x: torch.Tensor, group: int) -> torch.Tensor:
    """fp32 ``[groups]``: the largest magnitude of each group."""
    if x.device.type == "cpu" and fast.worth(x.numel()):
        return fast.largest(x, group)
    return blocks_of(x, group).abs().amax(1)


class Tabled(Looped):
    """Decodes table[code] * unit of the group, clamped to fp32's range."""

    @abc.abstractmethod
    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        """The parts of a body. CodecError for bytes that no encoder writes, before memory of the vector's size is
        allocated."""

    def opened(self, reader: Reader, header: Header) -> Put:
        parts = self.parts(reader, header, torch.device("cpu"))
        numbers = parts.packed, parts.table, parts.units, parts.group, parts.bits
        return lambda out, weight: tabled.add_table(out, *numbers, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        parts, n = self.parts(reader, header, device), header.elements
        out = torch.empty(n, device=device)
        for start, stop in pieces(n, parts.group, device):
            packed = piece_of(parts.packed, n, parts.bits, start, stop)
            codes = unpack(bytes_tensor(packed, torch.uint8, device), stop - start, parts.bits)
            values = blocks_of(parts.table[codes.to(torch.int32)], min(parts.group, stop - start))
            first = start // parts.group
            values *= parts.units[first : first + len(values), None]
            out[start:stop] = values.clamp_(-LARGEST, LARGEST).view(-1)[: stop - start]
        return out
