"""``thc``: rotate, clamp, round at random to levels from a table, and add the levels (THC, Li et al., NSDI 2024).

All workers use the same rotation and the same range, so the integers can be added without decoding: in a network
switch, by an aggregator that knows nothing of the codec, or masked. Clamping loses a little energy, which error
feedback carries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..blobs.pieces import Doubt, Piece, onto
from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor, check_finite, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import blocks
from ..cpu.calls import tables as tabled
from ..fitted.solvers import quantile, stochastic_levels
from ..gpu import dispatch as gpu
from ..primitives import philox, rotation
from ..primitives.key import Key
from ..primitives.packing import packed_size, put, taken, unpack
from ..primitives.scales import LARGEST
from ..specs.spec import Spec
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
        self._entries = tuple(table)
        self.table = torch.tensor(self._entries, dtype=torch.int32)

    @property
    def top(self) -> int:
        return self.grid

    def statistics(self, count: int) -> int:
        return rotation.blocks(count, self.block)

    def levels_count(self, count: int) -> int:
        return rotation.coordinates(count, self.block)

    def statistic(self, x: torch.Tensor, flag: torch.Tensor | None = None) -> torch.Tensor:
        """The norm of each block; a ``flag`` on its device as in ``rotation.lengths``."""
        out = torch.zeros(rotation.blocks(x.numel(), self.block), device=x.device)
        for segment in rotation.layout(x.numel(), self.block):
            part = x[segment.start : segment.start + segment.length]
            out[segment.row : segment.row + segment.rows] = rotation.lengths(part, segment.size, flag)
        return out

    def looks(self, device: torch.device) -> bool:
        return self._on_gpu(device)

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        if self._on_gpu(x.device):
            flag = gpu.new_flag(x.device)
            statistic = self.statistic(x, flag)
            return [statistic, self._packed(x, statistic, key), Doubt(flag, lambda: self._refused(x, key))]
        if not self._is_quick(x.numel(), x.device):
            return super().write(x, key)
        statistic = self.statistic(x)
        codes = self._codes(x, statistic, key)
        if self.bits == 8:
            return [tensor_bytes(statistic), tensor_bytes(codes)]
        packed = torch.empty(packed_size(codes.numel(), self.bits), dtype=torch.uint8)
        fast.pack_part(codes, self.bits, packed, codes.numel(), 0)
        return [tensor_bytes(statistic), tensor_bytes(packed)]

    def _refused(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        check_finite(x)
        return super().write(x, key)  # says that a length is beyond fp32

    def accumulate(self, reader: Reader, header: Header, outs: Sequence[torch.Tensor], weight: float) -> None:
        direct = self._is_quick(header.elements, outs[0].device) or self._on_gpu(outs[0].device)
        if len(outs) > 1 or not direct:
            super().accumulate(reader, header, outs, weight)
            return
        self._decode(reader, header, outs[0], weight)

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        if self._on_gpu(device):
            out = torch.empty(header.elements, device=device)
            self._decode(reader, header, out, None)
            return out
        if not self._is_quick(header.elements, device):
            return super().read(reader, header, device)
        out = fast.room(header.elements)
        self._decode(reader, header, out, None)
        return out

    def _decode(self, reader: Reader, header: Header, out: torch.Tensor, weight: float | None) -> None:
        """out = decoded, or with a weight out += decoded * weight, by the compiled loops or by the kernels."""
        statistic, packed = self.body(reader, header, out.device)
        reader.end()
        count, centre = self.levels_count(out.numel()), self.grid / 2
        if self._on_gpu(out.device):
            self._decode_gpu(bytes_tensor(packed, torch.uint8, out.device), statistic, self._key(header), out, weight)
            return
        values = fast.room(count)
        table = torch.zeros(1 << self.bits)
        table[: len(self.table)] = self.table.to(torch.float32) - centre
        tabled.add_table(values, packed, table, torch.ones(1), count, self.bits, None)
        self._back(values, statistic, self._key(header), out, weight)

    def _back(
        self, values: torch.Tensor, statistic: torch.Tensor, key: Key, out: torch.Tensor, weight: float | None
    ) -> None:
        for segment in rotation.layout(out.numel(), self.block):
            rows = values[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            factors = statistic[segment.row : segment.row + segment.rows] * (2 * self.reach / self.grid / segment.size)
            part = out[segment.start : segment.start + segment.length]
            blocks.turn_back(rows, rotation.sign_words(segment, key), factors, weight, part)

    def _codes(self, x: torch.Tensor, statistic: torch.Tensor, key: Key) -> torch.Tensor:
        """uint8 indices into the table, by the compiled loops."""
        out = fast.room(self.levels_count(x.numel()), torch.uint8)
        for segment in rotation.layout(x.numel(), self.block):
            length = statistic[segment.row : segment.row + segment.rows]
            unit = torch.where(length > 0, length, torch.ones_like(length))
            part = x[segment.start : segment.start + segment.length]
            signs = rotation.sign_words(segment, key)
            turned = fast.room(segment.rows * segment.size)
            blocks.turn(part, unit, True, signs, turned.view(segment.rows, segment.size))
            codes = out[segment.code : segment.code + turned.numel()]
            blocks.thc_codes(turned, self.reach, self.table, self._below(x.device), key.dither, segment.code, codes)
        return out

    def _below(self, device: torch.device) -> torch.Tensor:
        """For each integer of the grid, the index of the table's entry at or below it."""
        places = torch.arange(self.grid + 1, device=device, dtype=torch.int32)
        below = torch.searchsorted(self.table.to(device), places, right=True) - 1
        return below.clamp(max=len(self.table) - 2)

    def _is_quick(self, count: int, device: torch.device) -> bool:
        fits = self.grid + 1 <= 1 << 12 and (self.block == 0 or self.block >= 32)
        return fits and device.type == "cpu" and fast.worth(count) and not gpu.available(device)

    def levels(self, x: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int) -> torch.Tensor:
        if self._is_quick(x.numel(), x.device):
            return self.to_levels(self._codes(x, statistic, key))
        count = self.levels_count(x.numel())
        if self._on_gpu(x.device):
            return self.to_levels(unpack(self._packed(x, statistic, key), count, self.bits))
        out = torch.empty(count, dtype=torch.int32, device=x.device)
        for segment in rotation.layout(x.numel(), self.block):
            level = self._levels(x, statistic, key, segment)
            out[segment.code : segment.code + level.numel()] = level
        return out

    def _levels(self, x: torch.Tensor, statistic: torch.Tensor, key: Key, segment: rotation.Segment) -> torch.Tensor:
        """int32 levels of a segment's coordinates, in torch."""
        table, below = self.table.to(x.device), self._below(x.device)
        length = statistic[segment.row : segment.row + segment.rows, None]
        scaled = rotation.rows_of(x, segment) / torch.where(length > 0, length, torch.ones_like(length))
        turned = rotation.forward(scaled, segment, Key(key.seed, key.step))
        y = (turned.clamp(-self.reach, self.reach) / (2 * self.reach) + 0.5) * self.grid
        index = below[y.nan_to_num_(0.0).floor().clamp(0, self.grid).to(torch.int64)]
        low, high = table[index], table[index + 1]
        u = philox.uniform(y.numel(), key.dither, 1, segment.code, x.device).view_as(y)
        return torch.where(u < (y - low) / (high - low), high, low).view(-1)

    def _packed(self, x: torch.Tensor, statistic: torch.Tensor, key: Key) -> torch.Tensor:
        """The packed codes of a vector on a device, by the kernels, except segments that are too short for them."""
        count = self.levels_count(x.numel())
        packed = torch.zeros(packed_size(count, self.bits), dtype=torch.uint8, device=x.device)
        for segment in rotation.layout(x.numel(), self.block):
            lengths, rows = statistic[segment.row : segment.row + segment.rows], rotation.rows_of(x, segment)
            if segment.size >= gpu.LEAST:
                gpu.thc_encode(rows, lengths, self._entries, self.bits, self.reach, key, segment.code, packed)
            else:
                codes = self.to_codes(self._levels(x, statistic, key, segment))
                put(packed, codes, self.bits, count, segment.code)
        return packed

    def _decode_gpu(
        self, packed: torch.Tensor, statistic: torch.Tensor, key: Key, out: torch.Tensor, weight: float | None
    ) -> None:
        count, table = self.levels_count(out.numel()), torch.zeros(1 << self.bits)
        table[: len(self.table)] = self.table.to(torch.float32) - self.grid / 2
        table = onto(table, out.device)
        for segment in rotation.layout(out.numel(), self.block):
            rows = rotation.rows_of(out, segment)
            factors = statistic[segment.row : segment.row + segment.rows] * (2 * self.reach / self.grid / segment.size)
            if gpu.fused(segment.size) and segment.length == rows.numel():
                gpu.eden_decode(packed, table, key, segment.code, count, factors, rows, weight)
                continue
            values = table[taken(packed, rows.numel(), self.bits, count, segment.code).to(torch.int64)].view_as(rows)
            turned = rotation.backward(values, segment, Key(key.seed, key.step))
            decoded = (turned * factors[:, None]).clamp_(-LARGEST, LARGEST)
            rotation.put_rows(out, segment, decoded if weight is None else rows + decoded * weight)

    def _on_gpu(self, device: torch.device) -> bool:
        fits = self.bits in (2, 4) and self.grid < 256 and (not self.block or self.block >= gpu.LEAST)
        return fits and gpu.available(device)

    def to_codes(self, levels: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.table.to(levels.device), levels).to(torch.uint8)

    def to_levels(self, codes: torch.Tensor) -> torch.Tensor:
        return self.table.to(codes.device)[codes.to(torch.int64)]

    def restore(self, total: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int, count: int) -> torch.Tensor:
        out = torch.empty(count, device=total.device)
        if self._is_quick(count, total.device):
            self._back(total.to(torch.float32) - workers * self.grid / 2, statistic, key, out, None)
            return out
        for segment in rotation.layout(count, self.block):
            part = total[segment.code : segment.code + segment.rows * segment.size].view(segment.rows, segment.size)
            centred = part.to(torch.float32) - workers * self.grid / 2
            rows = rotation.backward(centred, segment, Key(key.seed, key.step))
            factor = statistic[segment.row : segment.row + segment.rows, None] * (
                2 * self.reach / self.grid / segment.size
            )
            rotation.put_rows(out, segment, (rows * factor).clamp(-LARGEST, LARGEST))
        return out
