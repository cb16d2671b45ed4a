"""``int8_tensor`` and ``int8_channel``: the 8-bit quantisation of torch's DDP hooks, nearest rounding, a zero point.

torch keeps scales at 2^-23 or above, which rounds small gradients to zero; here there is no such floor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor, piece
from ..cpu.calls import values as loops
from ..errors import CodecError
from ..primitives.key import Key
from ..primitives.scales import LARGEST, divided
from .looped import Looped, Put
from .tables import blocks_of, pieces


class Affine(Looped):
    """q = round(x / s) + z in 0..255, s = (max - min) / 255 of the tensor (or each row of 512), z = round(-min / s)."""

    def _size(self, n: int) -> int:
        return 512 if self.spec.name == "int8_channel" else n

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        n, size = x.numel(), self._size(x.numel())
        if self.quick(n, x.device):
            return [piece(part) for part in loops.affine(x, size)]
        rows = blocks_of(x, size)
        least, largest = torch.aminmax(rows, dim=1)
        low, high = least.clamp(max=0.0), largest.clamp(min=0.0)
        scale = divided(high, 255.0) - divided(low, 255.0)
        safe = torch.where(scale > 0, scale, torch.ones_like(scale))
        zero = (-(low / safe).round()).clamp(0, 255)
        codes = torch.empty(n, dtype=torch.uint8, device=x.device)
        for start, stop in pieces(n, size, x.device):
            part, first = blocks_of(x[start:stop], min(size, stop - start)), start // size
            level = (part / safe[first : first + len(part), None]).round_() + zero[first : first + len(part), None]
            codes[start:stop] = level.clamp_(0, 255).view(-1)[: stop - start]
        return [piece(scale), piece(zero.to(torch.uint8)), piece(codes)]

    def _body(
        self, reader: Reader, header: Header, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, memoryview]:
        """(fp32 scales, uint8 zero points, codes)."""
        n = header.elements
        rows = -(-n // self._size(n))
        scale_bytes, zero_bytes, packed = reader.take(4 * rows), reader.take(rows), reader.take(n)
        scale = bytes_tensor(scale_bytes, torch.float32, device)
        if not bool(torch.isfinite(scale).all()):
            raise CodecError("the blob has a scale that is not finite")
        return scale, bytes_tensor(zero_bytes, torch.uint8, device), packed

    def opened(self, reader: Reader, header: Header) -> Put:
        scale, zero, packed = self._body(reader, header, torch.device("cpu"))
        size = self._size(header.elements)
        return lambda out, weight: loops.add_affine(out, packed, size, scale, zero, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n, size = header.elements, self._size(header.elements)
        scale, zero, packed = self._body(reader, header, device)
        code, out = bytes_tensor(packed, torch.uint8, device), torch.empty(n, device=device)
        for start, stop in pieces(n, size, device):
            level, first = blocks_of(code[start:stop].to(torch.float32), min(size, stop - start)), start // size
            level -= zero[first : first + len(level), None].to(torch.float32)
            level *= scale[first : first + len(level), None]
            out[start:stop] = level.clamp_(-LARGEST, LARGEST).view(-1)[: stop - start]
        return out
