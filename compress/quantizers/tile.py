"""``tile``: small groups of few-bit integers for activations, outlier tiles rotated first (after TAH-Quant, He et al.,
2025). Stateless: for samples that are seen once, and for links that come and go."""

from __future__ import annotations

import torch

from ..codec import Codec, bytes_tensor, tensor_bytes
from ..primitives import philox, rotation, scales
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..spec import Spec
from ..wire import Buffer, Header, Reader
from .dithered import LARGEST
from .tables import blocks_of


class Tile(Codec):
    """Tiles of ``tile`` neighbours with one 16-bit step. A tile whose largest value is over ``outlier`` times its root
    mean square goes through a Walsh-Hadamard transform, which spreads the outlier over the tile; one bit says so."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits, self.tile, self.outlier = spec.number("bits"), spec.number("tile"), spec.real("outlier")
        self.stochastic = spec.word("rounding") == "stochastic"
        self.top = (1 << (self.bits - 1)) - 1

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        rows, exponent = rotation.rescale(blocks_of(x, self.tile))
        largest = rows.abs().amax(1)
        turned = (largest > self.outlier * rows.square().mean(1).sqrt()) & (largest > 0)
        rows = torch.where(turned[:, None], rotation.hadamard(rows) * self.tile**-0.5, rows)
        wanted = torch.ldexp(rows.abs().amax(1) / self.top, exponent)
        code = scales.to_codes(wanted.clamp(max=LARGEST), up=self.stochastic)
        half = exponent // 2
        unit = torch.ldexp(torch.ldexp(scales.to_scales(code), -half), -(exponent - half))[:, None]
        ratio = rows / torch.where(unit > 0, unit, torch.ones_like(unit))
        if self.stochastic:
            ratio = (ratio + philox.uniform(ratio.numel(), key.private, 0, 0, x.device).view_as(ratio)).floor()
        level = torch.where(unit > 0, ratio.round(), torch.zeros_like(ratio)).clamp(-self.top, self.top)
        codes = (level + float(self.top + 1)).to(torch.uint8).view(-1)
        return [
            tensor_bytes(code),
            tensor_bytes(pack(turned.to(torch.uint8), 1)),
            tensor_bytes(pack(codes, self.bits)),
        ]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        tiles = -(-n // self.tile)
        count = tiles * self.tile
        code_bytes, flag_bytes = reader.take(2 * tiles), reader.take(packed_size(tiles, 1))
        packed = reader.take(packed_size(count, self.bits))
        code = bytes_tensor(code_bytes, torch.int16, device)
        scales.check_codes(code)
        turned = unpack(bytes_tensor(flag_bytes, torch.uint8, device), tiles, 1) > 0
        level = unpack(bytes_tensor(packed, torch.uint8, device), count, self.bits).to(torch.float32)
        rows = level.view(tiles, self.tile) - float(self.top + 1)
        back = rotation.hadamard(rows) * self.tile**-0.5
        rows = torch.where(turned[:, None], back, rows) * scales.to_scales(code)[:, None]
        return rows.clamp(-LARGEST, LARGEST).view(-1)[:n]
