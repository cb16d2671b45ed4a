"""``dynamiq`` (DynamiQ, 2026): groups of 16 with scales of scales and uneven levels, in blocks of several widths."""

from __future__ import annotations

import torch

from ..blobs.wire import Reader
from ..codec import bytes_tensor
from ..errors import CodecError
from ..primitives import scales, sums
from ..primitives.key import Key
from ..quantizers.tables import blocks_of
from .hop import BLOCK, Hop, between


class Dynamiq(Hop):
    """Means of blocks subtracted; groups of 16 scaled by u8 of a 16-bit scale per block, rounded up; levels
    ((1 + 2e²)^r - 1) / (...) with rounding in the value domain, which the public kernels' index rounding is not."""

    widths = (2, 4, 8)
    errors = (2.0 + 4.0 * 17.0 / 512.0, 4.0 * 17.0 / 512.0, 0.0)
    """Only the prices of a bit count: the second step of widths is taken at 512 / 17 times the energy of the first."""
    overhead = 16 / 256 + 0.5 + 16 / 256
    _epsilon = (0.23, 0.18, 0.10)

    def prepare(self, x: torch.Tensor, key: Key) -> torch.Tensor:
        return blocks_of(x, BLOCK)

    def finish(self, rows: torch.Tensor, count: int, key: Key) -> torch.Tensor:
        return rows.reshape(-1)[:count]

    def levels(self, index: int) -> torch.Tensor:
        base, top = 1.0 + 2.0 * self._epsilon[index] ** 2, (1 << (self.widths[index] - 1)) - 1
        r = torch.arange(top + 1, dtype=torch.float64)
        table: torch.Tensor = (base**r - 1.0) / (base**top - 1.0)
        return table.to(torch.float32)

    def values(self, index: int) -> torch.Tensor:
        levels = self.levels(index)
        return torch.cat([levels, -levels])

    def scale(self, rows: torch.Tensor) -> list[torch.Tensor]:
        mean = (sums.sums(rows.reshape(-1), BLOCK, sums.VALUES) / BLOCK).to(torch.float32).to(torch.bfloat16)
        largest = self._centred(rows, mean).view(-1, 16, 16).abs().amax(2)
        code = scales.to_codes(largest.amax(1), up=True)
        unit = scales.to_scales(code)[:, None]
        safe = torch.where(unit > 0, unit, torch.ones_like(unit))
        return [mean, code, (largest / safe * 255.0).ceil().clamp(0, 255).to(torch.uint8)]

    def _centred(self, rows: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return rows - mean.to(torch.float32).view(-1, 1)

    def quantize(self, rows: torch.Tensor, scale: list[torch.Tensor], index: int, u: torch.Tensor) -> torch.Tensor:
        mean, code, fine = scale
        groups = self._centred(rows, mean).view(-1, 16, 16)
        size = (fine.to(torch.float32) * (scales.to_scales(code.view(-1)) / 255.0)[:, None])[:, :, None]
        y = (groups.abs() / torch.where(size > 0, size, torch.ones_like(size))).clamp(max=1.0).view(-1, BLOCK)
        negative = (groups < 0).to(torch.uint8).view(-1, BLOCK)
        return between(y, self.levels(index), u) | negative << (self.widths[index] - 1)

    def units(self, reader: Reader, blocks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        mean = bytes_tensor(reader.take(2 * blocks), torch.bfloat16).to(torch.float32)
        code = bytes_tensor(reader.take(2 * blocks), torch.int16)
        scales.check_codes(code)
        if not bool(torch.isfinite(mean).all()):
            raise CodecError("the blob has a mean that is not finite")
        fine = bytes_tensor(reader.take(16 * blocks), torch.uint8).view(blocks, 16).to(torch.float32)
        return (fine * (scales.to_scales(code) / 255.0)[:, None]).view(-1).to(device), mean.to(device)
