"""What codecs share whose elements are an entry of a table times a unit of their group: how they are decoded."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..codec import Codec, bytes_tensor
from ..cpu import dispatch as fast
from ..primitives.packing import unpack
from ..primitives.scales import LARGEST
from ..wire import Header, Reader


@dataclass(frozen=True)
class Parts:
    """A body, checked: the packed codes, fp32 values of all codes, fp32 units ``[groups]``."""

    packed: memoryview
    table: torch.Tensor
    units: torch.Tensor
    group: int
    bits: int


def blocks_of(x: torch.Tensor, size: int) -> torch.Tensor:
    """``[blocks, size]``, the last one padded with zeros."""
    return torch.nn.functional.pad(x, (0, -x.numel() % size)).view(-1, size)


def largest_of(x: torch.Tensor, group: int) -> torch.Tensor:
    """fp32 ``[groups]``: the largest magnitude of each group."""
    if x.device.type == "cpu" and fast.worth(x.numel()):
        return fast.largest(x, group)
    return blocks_of(x, group).abs().amax(1)


class Tabled(Codec):
    """table[code] * unit of the group, held to fp32's range."""

    @abc.abstractmethod
    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        """What a body has. CodecError where no encoder wrote it; nothing of its size was allocated then."""

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        parts, n = self.parts(reader, header, device), header.elements
        if device.type == "cpu" and fast.worth(n):
            out = torch.empty(n)
            fast.add_table(out, parts.packed, parts.table, parts.units, parts.group, parts.bits, None)
            return out
        codes = unpack(bytes_tensor(parts.packed, torch.uint8, device), n, parts.bits)
        values = blocks_of(parts.table[codes.to(torch.int64)], parts.group)
        return (values * parts.units[:, None]).clamp(-LARGEST, LARGEST).view(-1)[:n]

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        if outs[0].device.type != "cpu" or not fast.worth(header.elements):
            super().accumulate(reader, header, outs, weight)
            return
        parts = self.parts(reader, header, outs[0].device)
        reader.end()
        for out in outs:
            fast.add_table(out, parts.packed, parts.table, parts.units, parts.group, parts.bits, weight)

    def write_to(self, reader: Reader, header: Header, out: torch.Tensor) -> None:
        if out.device.type != "cpu" or out.dtype != torch.float32 or not fast.worth(out.numel()):
            super().write_to(reader, header, out)
            return
        parts = self.parts(reader, header, out.device)
        fast.add_table(out, parts.packed, parts.table, parts.units, parts.group, parts.bits, None)
