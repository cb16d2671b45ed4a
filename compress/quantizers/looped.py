"""What codecs share whose bodies a compiled loop writes to a vector, or adds to it, in one pass."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import torch

from ..blobs.wire import Header, Reader
from ..codec import Codec
from ..cpu import dispatch as fast

Put = Callable[[torch.Tensor, float | None], None]
"""(flat fp32 vector on the CPU, weight): the vector = decoded, or with a weight += decoded * weight."""


class Looped(Codec):
    """Where the loops are worth it, ``opened`` decodes; elsewhere ``plain`` does. The same bits."""

    @abc.abstractmethod
    def opened(self, reader: Reader, header: Header) -> Put:
        """A body, read to its end and checked, as what puts it where it belongs. CodecError where no encoder wrote it;
        nothing of its size was allocated then."""

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
