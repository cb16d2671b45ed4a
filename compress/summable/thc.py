"""``thc``: rotate, clamp, round at random to levels from a table, and add the levels (THC, Li et al., NSDI 2024).

All workers use the same rotation and the same range, so the integers can be added without decoding: in a switch, at an
aggregator that knows nothing, or masked. The clamp loses a little of the energy: that is what error feedback carries.
"""

from __future__ import annotations

import torch

from ..gpu import dispatch as gpu
from ..primitives import philox, rotation
from ..primitives.key import Key
from ..primitives.packing import unpack
from ..quantizers.solvers import quantile, stochastic_levels
from ..spec import Spec
from .summed import Summed


class Thc(Summed):
    """bits, granularity (the largest integer of the table), tail (share of coordinates beyond the range)."""

    keyed = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits, self.block = spec.number("bits"), int(spec["block"])
        granularity, tail = spec.number("granularity"), 1.0 / spec.number("tail")
        self.grid = granularity or (1 << self.bits) - 1
        self.reach = quantile(1 - tail / 2)
        uniform = self.grid == (1 << self.bits) - 1
        table = (
            range(self.grid + 1)
            if uniform
            else stochastic_levels(self.bits, self.grid, tail, self.grid % 4 == 2 and self.grid < 40)
        )
        self.table = torch.tensor(list(table), dtype=torch.int32)

    @property
    def top(self) -> int:
        return self.grid

    def statistics(self, count: int) -> int:
        return rotation.blocks(count, self.block)

    def levels_count(self, count: int) -> int:
        return rotation.coordinates(count, self.block)

    def statistic(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of each block."""
        out = torch.zeros(rotation.blocks(x.numel(), self.block), device=x.device)
        for segment in rotation.layout(x.numel(), self.block):
            out[segment.row : segment.row + segment.rows] = rotation.lengths(rotation.rows_of(x, segment))
        return out

    def levels(self, x: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int) -> torch.Tensor:
        table = self.table.to(x.device)
        below = (
            torch.searchsorted(table, torch.arange(self.grid + 1, device=x.device, dtype=torch.int32), right=True) - 1
        )
        below = below.clamp(max=len(table) - 2)
        out = torch.empty(self.levels_count(x.numel()), dtype=torch.int32, device=x.device)
        for segment in rotation.layout(x.numel(), self.block):
            length = statistic[segment.row : segment.row + segment.rows, None]
            if self._on_gpu(segment, x.device):
                part = x[segment.start : segment.start + segment.length].contiguous()
                packed = gpu.thc_encode(part, length.reshape(-1), self.table, self.reach, segment.size, key)
                out[segment.code : segment.code + part.numel()] = self.to_levels(unpack(packed, part.numel(), 4))
                continue
            scaled = rotation.rows_of(x, segment) / torch.where(length > 0, length, torch.ones_like(length))
            turned = rotation.forward(scaled, segment, Key(key.seed, key.step))
            y = (turned.clamp(-self.reach, self.reach) / (2 * self.reach) + 0.5) * self.grid
            index = below[y.floor().clamp(0, self.grid).to(torch.int64)]
            low, high = table[index], table[index + 1]
            u = philox.uniform(y.numel(), key.private, 1, segment.code, x.device).view_as(y)
            level = torch.where(u < (y - low) / (high - low), high, low)
            out[segment.code : segment.code + level.numel()] = level.view(-1)
        return out

    def _on_gpu(self, segment: rotation.Segment, device: torch.device) -> bool:
        fits = self.bits == 4 and self.grid < 256 and segment.size == self.block and self.block in (4096, 8192)
        return fits and gpu.available(device)

    def to_codes(self, levels: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.table.to(levels.device), levels).to(torch.uint8)

    def to_levels(self, codes: torch.Tensor) -> torch.Tensor:
        return self.table.to(codes.device)[codes.to(torch.int64)]

    def restore(self, total: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int, count: int) -> torch.Tensor:
        out = torch.empty(count, device=total.device)
        for segment in rotation.layout(count, self.block):
            part = total[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            centred = part.to(torch.float32) - workers * self.grid / 2
            rows = rotation.backward(centred, segment, Key(key.seed, key.step))
            factor = statistic[segment.row : segment.row + segment.rows, None] * (
                2 * self.reach / self.grid / segment.size
            )
            rotation.put_rows(out, segment, rows * factor)
        return out
