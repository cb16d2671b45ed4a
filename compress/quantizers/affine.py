"""``int8_tensor`` and ``int8_channel``: the 8-bit quantisation of torch's DDP hooks, nearest rounding, a zero point.

torch never lets a scale below 2^-23, which loses small gradients whole; here there is no such floor.
"""

from __future__ import annotations

import torch

from ..codec import Codec, bytes_tensor, tensor_bytes
from ..errors import CodecError
from ..primitives.key import Key
from ..wire import Buffer, Header, Reader
from .tables import blocks_of


class Affine(Codec):
    """q = round(x / s) + z in 0..255, s = (max - min) / 255 of the tensor (or each row of 512), z = round(-min / s)."""

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        rows = self._rows(x)
        low, high = rows.amin(1).clamp(max=0.0), rows.amax(1).clamp(min=0.0)
        scale = high / 255.0 - low / 255.0
        safe = torch.where(scale > 0, scale, torch.ones_like(scale))[:, None]
        zero = (-(low[:, None] / safe).round()).clamp(0, 255)
        codes = ((rows / safe).round() + zero).clamp(0, 255).view(-1)[: x.numel()].to(torch.uint8)
        return [tensor_bytes(scale), tensor_bytes(zero.view(-1).to(torch.uint8)), tensor_bytes(codes)]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        rows = -(-n // 512) if self.spec.name == "int8_channel" else 1
        scale_bytes, zero_bytes, packed = reader.take(4 * rows), reader.take(rows), reader.take(n)
        scale = bytes_tensor(scale_bytes, torch.float32, device)
        if not bool(torch.isfinite(scale).all()):
            raise CodecError("the blob has a scale that is not finite")
        level = bytes_tensor(packed, torch.uint8, device).to(torch.float32)
        level = self._rows(level) - bytes_tensor(zero_bytes, torch.uint8, device).to(torch.float32)[:, None]
        return (level * scale[:, None]).clamp(-3.4028234663852886e38, 3.4028234663852886e38).view(-1)[:n]

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        return blocks_of(x, 512) if self.spec.name == "int8_channel" else x.view(1, -1)
