"""The base class of codecs whose bodies a compiled loop writes to a vector, or adds to it, in one pass."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import torch

from ..blobs.wire import Header, Reader
from ..codec import Codec
from ..cpu import dispatch as fast

Put = Callable[[torch.Tensor, float | None], None]
"""``put(out, weight)``: out = decoded, or with a weight (not None) out += decoded * weight; out: flat fp32 on the
CPU."""


class Looped(Codec):
    """``opened`` decodes where the compiled loops are faster, ``plain`` elsewhere; both give the same bits."""

    @abc.abstractmethod
    def opened(self, reader: Reader, header: Header) -> Put:
        """Read a body to its end and check it. Returns a function that writes or adds the decoded values. CodecError
        for bytes that no encoder writes, before memory of the vector's size is allocated."""

    @abc.abstractmethod
    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        """As ``read``, with torch."""

    def quick(self, count: int, device: torch.device) -> bool:
        """Whether the loops take a vector of ``count`` elements."""
        return device.type == "cpu" and fast.worth(count)

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        if not self.quick(header.elements, device):
            return self.plain(reader, header, device)
        put, out = self.opened(reader, header), fast.room(header.elements)
        put(out, None)
        return out

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        if not self.quick(header.elements, outs[0].device):
            super().accumulate(reader, header, outs, weight)
            return
        put = self.opened(reader, header)
        reader.end()
        for out in outs:
            put(out, weight)

    def write_to(self, reader: Reader, header: Header, out: torch.Tensor) -> None:
        if out.dtype != torch.float32 or not self.quick(out.numel(), out.device):
            super().write_to(reader, header, out)
            return
        self.opened(reader, header)(out, None)
