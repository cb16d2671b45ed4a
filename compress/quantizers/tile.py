"""``tile``: small groups of few-bit integers for activations, outlier tiles rotated first (after TAH-Quant, He et al.,
2025). It is stateless: for samples that are seen only once, and for links that change often."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor, piece
from ..cpu.calls import blocks
from ..primitives import philox, rotation, scales
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..specs.spec import Spec
from .dithered import LARGEST
from .looped import Looped, Put
from .tables import blocks_of


class Tile(Looped):
    """Tiles of ``tile`` neighbours with one 16-bit step. A tile whose largest value is over ``outlier`` times its root
    mean square goes through a Walsh-Hadamard transform, which spreads the outlier over the tile; one bit says so."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits, self.tile, self.outlier = spec.number("bits"), spec.number("tile"), spec.real("outlier")
        self.stochastic = spec.word("rounding") == "stochastic"
        self.top = (1 << (self.bits - 1)) - 1

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        if self.quick(x.numel(), x.device):
            quick = blocks.tile(x, self.tile, self.bits, self.outlier, key.dither if self.stochastic else None)
            if quick is not None:
                return [piece(quick[0]), piece(pack(quick[1], 1)), piece(quick[2])]
        rows, exponent = rotation.rescale(blocks_of(x, self.tile))
        largest = rows.abs().amax(1)
        mean = (rotation.energy(rows) / float(self.tile)).sqrt()  # an integer sum, independent of the order
        turned = (largest.double() > self.outlier * mean) & (largest > 0)
        rows = torch.where(turned[:, None], rotation.hadamard(rows) * self.tile**-0.5, rows)
        wanted = torch.ldexp(scales.divided(rows.abs().amax(1), self.top), exponent)
        code = scales.to_codes(wanted.clamp(max=LARGEST), up=self.stochastic)
        half = exponent // 2
        unit = torch.ldexp(torch.ldexp(scales.to_scales(code), -half), -(exponent - half))[:, None]
        ratio = rows / torch.where(unit > 0, unit, torch.ones_like(unit))
        if self.stochastic:
            ratio = (ratio + philox.uniform(ratio.numel(), key.dither, 0, 0, x.device).view_as(ratio)).floor()
        level = torch.where(unit > 0, ratio.round(), torch.zeros_like(ratio)).clamp(-self.top, self.top)
        codes = (level + float(self.top + 1)).to(torch.uint8).view(-1)
        return [
            piece(code),
            piece(pack(turned.to(torch.uint8), 1)),
            piece(pack(codes, self.bits)),
        ]

    def opened(self, reader: Reader, header: Header) -> Put:
        units, turned, packed = self._parts(reader, header, torch.device("cpu"))
        return lambda out, weight: blocks.tile_back(packed, units, turned, self.tile, self.bits, weight, out)

    def _parts(
        self, reader: Reader, header: Header, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, memoryview]:
        """(fp32 units, uint8 whether each tile was rotated, packed levels) of a body."""
        tiles = -(-header.elements // self.tile)
        code_bytes, flag_bytes = reader.take(2 * tiles), reader.take(packed_size(tiles, 1))
        packed = reader.take(packed_size(tiles * self.tile, self.bits))
        code = bytes_tensor(code_bytes, torch.int16, device)
        scales.check_codes(code)
        return scales.to_scales(code), unpack(bytes_tensor(flag_bytes, torch.uint8, device), tiles, 1), packed

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        units, turned, packed = self._parts(reader, header, device)
        tiles = len(units)
        count = tiles * self.tile
        level = unpack(bytes_tensor(packed, torch.uint8, device), count, self.bits).to(torch.float32)
        rows = level.view(tiles, self.tile) - float(self.top + 1)
        back = rotation.hadamard(rows) * self.tile**-0.5
        rows = torch.where(turned[:, None] > 0, back, rows) * units[:, None]
        return rows.clamp(-LARGEST, LARGEST).view(-1)[:n]
