"""``rotq``: each block is rotated once, with signs that all workers share, and stays so on every hop, so that hops are
linear and one table of levels fits all."""

from __future__ import annotations

import torch

from ..blobs.wire import Reader
from ..codec import bytes_tensor
from ..primitives import rotation, scales
from ..primitives.key import Key
from ..primitives.tables import absmax_levels
from ..quantizers.tables import blocks_of
from .hop import BLOCK, Hop, between, segment_of


class RotQ(Hop):
    """Rotate once, one 16-bit scale per block, levels for normal blocks divided by their largest, widths by reverse
    water-filling."""

    widths = (2, 3, 4, 5, 6, 8)
    errors = (0.68, 0.107, 0.0215, 0.0048, 0.00114, 0.00007)
    overhead = 16 / 256
    turning = True

    def prepare(self, x: torch.Tensor, key: Key) -> torch.Tensor:
        rows = blocks_of(x, BLOCK)
        return rotation.forward(rows, segment_of(len(rows)), Key(key.seed, key.step)) * (1 / 16)

    def finish(self, rows: torch.Tensor, count: int, key: Key) -> torch.Tensor:
        back = rotation.backward(rows.contiguous(), segment_of(len(rows)), Key(key.seed, key.step)) * (1 / 16)
        return back.reshape(-1)[:count]

    def levels(self, index: int) -> torch.Tensor:
        return absmax_levels(self.widths[index])

    def scale(self, rows: torch.Tensor) -> list[torch.Tensor]:
        return [scales.to_codes(rows.abs().amax(1), up=True)]

    def quantize(self, rows: torch.Tensor, scale: list[torch.Tensor], index: int, u: torch.Tensor) -> torch.Tensor:
        unit = scales.to_scales(scale[0].view(-1))[:, None]
        y = (rows / torch.where(unit > 0, unit, torch.ones_like(unit))).clamp(-1.0, 1.0)
        return between(y, self.levels(index), u)

    def units(self, reader: Reader, blocks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        code = bytes_tensor(reader.take(2 * blocks), torch.int16)
        scales.check_codes(code)
        return scales.to_scales(code).to(device), None
