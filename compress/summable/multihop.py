"""Codecs made to be decoded, added and encoded again on the way: ``dynamiq`` and ``rotq``.

Both spend more bits where the sum of all workers has more energy: widths per block of 256 are chosen from one small
reduction of the blocks' energies, so all workers choose the same. ``dynamiq`` (DynamiQ, 2026) then has groups of 16
with scales of scales and uneven levels. ``rotq`` rotates each block once, with signs that all workers share, and stays
in the rotated domain on every hop, so that hops are linear and one level table fits all.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import torch

from ..codec import Codec, bytes_tensor, tensor_bytes
from ..errors import CodecError
from ..exchange.requests import Context, Gather, Program, Reduce
from ..primitives import philox, rotation, scales
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..primitives.rotation import Segment
from ..primitives.tables import absmax_levels
from ..quantizers.dithered import LARGEST
from ..quantizers.tables import blocks_of
from ..spec import Spec
from ..wire import Buffer, Header, Reader

BLOCK = 256
Uniform = Callable[[int, int], torch.Tensor]
"""(count, first element) -> uniform [0, 1)."""


class Hop(Codec):
    """Blocks of 256 of several widths. ``widths``: the bits that a block's element may have."""

    keyed = True
    widths: tuple[int, ...]
    overhead: float
    """Bits per element beside the codes."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits = spec.real("bits")

    @abc.abstractmethod
    def prepare(self, x: torch.Tensor, key: Key) -> torch.Tensor:
        """fp32 ``[blocks, 256]`` in the domain where blocks are added."""

    @abc.abstractmethod
    def finish(self, rows: torch.Tensor, count: int, key: Key) -> torch.Tensor:
        """The inverse of ``prepare``: fp32 ``[count]``."""

    @abc.abstractmethod
    def choose(self, energy: torch.Tensor, spent: float) -> torch.Tensor:
        """uint8 ``[blocks]``: the index in ``widths`` of each block (energies: fp64), so that the mean keeps to the
        budget, of which ``spent`` bits an element have gone to the reduction of norms."""

    @abc.abstractmethod
    def quantize(self, rows: torch.Tensor, choice: torch.Tensor, uniform: Uniform) -> list[Buffer]:
        """The body of ``[blocks, 256]``."""

    @abc.abstractmethod
    def dequantize(self, reader: Reader, choice: torch.Tensor) -> torch.Tensor:
        """``[blocks, 256]``, fp32."""

    def norms(self, rows: torch.Tensor) -> torch.Tensor:
        """What is reduced before the widths are chosen: the norm of each block, in 16-bit floats. Not its square, whose
        range would end where that of the values does not."""
        safe, exponent = rotation.rescale(rows)
        length = torch.ldexp(safe.square().sum(1).sqrt() * 2.0**-16, exponent).clamp(max=LARGEST * 2.0**-16)
        return scales.to_scales(scales.to_codes(length, up=False))

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        safe, exponent = rotation.rescale(x.view(1, -1))
        rows = self.prepare(safe.view(-1), key)
        choice = self.choose(self.norms(rows).double().square(), 0.0)

        def uniform(count: int, start: int) -> torch.Tensor:
            return philox.uniform(count, key.dither, 0, start, x.device)

        head: list[Buffer] = [bytes([int(exponent) & 0xFF, int(exponent) >> 8 & 0xFF]), tensor_bytes(pack(choice, 3))]
        return [*head, *self.quantize(rows, choice, uniform)]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        blocks = -(-n // BLOCK)
        low, high = reader.byte(), reader.byte()
        exponent = (low | high << 8) - (1 << 16 if high & 0x80 else 0)
        if not -200 < exponent < 200:
            raise CodecError("the blob has an absurd exponent")
        choice = unpack(bytes_tensor(reader.take(packed_size(blocks, 3)), torch.uint8, device), blocks, 3)
        if int(choice.max()) >= len(self.widths):
            raise CodecError("the blob has a block of unknown width")
        rows = self.dequantize(reader, choice)
        flat = self.finish(rows, n, self._key(header))
        power = torch.tensor(exponent, device=device)
        return torch.ldexp(torch.ldexp(flat, power // 2), power - power // 2).clamp(-LARGEST, LARGEST)

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        flat = x.detach().reshape(-1).to(torch.float32) * context.weight
        if not bool(torch.isfinite(flat).all()):
            raise CodecError("a value is not finite: not encoded")
        key = Key(context.tensor_seed, context.step, context.rank)
        rows = self.prepare(flat, key)
        if not bool(torch.isfinite(rows).all()):
            raise CodecError(rotation.BEYOND)
        total = yield Reduce(self.norms(rows), "sum", 16)
        choice = self.choose(total.double().square(), 16 / BLOCK)

        def uniform(count: int, start: int) -> torch.Tensor:
            """Correlated rounding: the workers' values at an element are in different n-ths of [0, 1)."""
            turn = philox.words(count, Key(context.tensor_seed, context.step), 2, start, x.device) + context.rank
            own = philox.uniform(count, key.private, 0, start, x.device)
            return ((turn % context.size).to(torch.float32) + own) / context.size

        blob = b"".join(bytes(part) for part in self.quantize(rows, choice, uniform))
        answers = yield Gather(blob)
        context.own = self.finish(self.dequantize(Reader(blob), choice), flat.numel(), key)
        total = torch.zeros_like(rows)
        for other, _ in answers:
            total += self.dequantize(Reader(other), choice)
        return self.finish(total, flat.numel(), key).view(x.shape)


class Dynamiq(Hop):
    """Means of blocks subtracted; groups of 16 scaled by u8 of a 16-bit scale per block, rounded up; levels
    ((1 + 2e²)^r - 1) / (...) with rounding in the value domain, which the public kernels' index rounding is not."""

    widths = (2, 4, 8)
    overhead = 16 / 256 + 0.5 + 16 / 256
    _epsilon = (0.23, 0.18, 0.10)

    def prepare(self, x: torch.Tensor, key: Key) -> torch.Tensor:
        return blocks_of(x, BLOCK)

    def finish(self, rows: torch.Tensor, count: int, key: Key) -> torch.Tensor:
        return rows.reshape(-1)[:count]

    def choose(self, energy: torch.Tensor, spent: float) -> torch.Tensor:
        budget = self.bits - self.overhead - 3 / BLOCK - spent
        log = torch.where(energy > 0, energy.clamp(min=1e-300).log2(), -1000.0)
        apart = torch.log2(torch.tensor(512.0 / 17.0, dtype=torch.float64, device=energy.device))
        widths = torch.tensor(self.widths, device=energy.device).float()
        low, high = float(log.min()) - 8.0, float(log.max()) + 1.0

        def at(threshold: float) -> torch.Tensor:
            return (log >= threshold).to(torch.uint8) + (log >= threshold + apart).to(torch.uint8)

        for _ in range(50):
            middle = (low + high) / 2
            mean = float(widths[at(middle).to(torch.int64)].mean())
            low, high = (low, middle) if mean <= budget else (middle, high)
        return at(high)

    def _table(self, index: int, device: torch.device) -> torch.Tensor:
        base, top = 1.0 + 2.0 * self._epsilon[index] ** 2, (1 << (self.widths[index] - 1)) - 1
        r = torch.arange(top + 1, dtype=torch.float64)
        table: torch.Tensor = (base**r - 1.0) / (base**top - 1.0)
        return table.to(torch.float32).to(device)

    def quantize(self, rows: torch.Tensor, choice: torch.Tensor, uniform: Uniform) -> list[Buffer]:
        mean = rows.mean(1).to(torch.bfloat16)
        centred = rows - mean.to(torch.float32)[:, None]
        groups = centred.view(len(rows), 16, 16)
        largest = groups.abs().amax(2)
        code = scales.to_codes(largest.amax(1), up=True)
        unit = scales.to_scales(code)[:, None]
        safe = torch.where(unit > 0, unit, torch.ones_like(unit))
        fine = (largest / safe * 255.0).ceil().clamp(0, 255)
        scale = (fine * (unit / 255.0))[:, :, None]
        y = (groups.abs() / torch.where(scale > 0, scale, torch.ones_like(scale))).clamp(max=1.0)
        u = uniform(rows.numel(), 0).view_as(y)
        body: list[Buffer] = [tensor_bytes(mean), tensor_bytes(code), tensor_bytes(fine.to(torch.uint8))]
        for index, width in enumerate(self.widths):
            chosen = choice == index
            if not bool(chosen.any()):
                continue
            table, part = self._table(index, rows.device), y[chosen]
            below = (torch.searchsorted(table, part, right=True) - 1).clamp(0, len(table) - 2)
            low, high = table[below], table[below + 1]
            level = below + (u[chosen] < (part - low) / (high - low))
            codes = level.to(torch.uint8) | (groups[chosen] < 0).to(torch.uint8) << (width - 1)
            body.append(tensor_bytes(pack(codes.view(-1), width)))
        return body

    def dequantize(self, reader: Reader, choice: torch.Tensor) -> torch.Tensor:
        blocks, device = len(choice), choice.device
        mean = bytes_tensor(reader.take(2 * blocks), torch.bfloat16, device).to(torch.float32)
        code = bytes_tensor(reader.take(2 * blocks), torch.int16, device)
        scales.check_codes(code)
        if not bool(torch.isfinite(mean).all()):
            raise CodecError("the blob has a mean that is not finite")
        fine = bytes_tensor(reader.take(16 * blocks), torch.uint8, device).view(blocks, 16).to(torch.float32)
        scale = fine * (scales.to_scales(code) / 255.0)[:, None]
        counts = [int((choice == index).sum()) * BLOCK for index in range(len(self.widths))]
        if sum(packed_size(c, w) for c, w in zip(counts, self.widths, strict=True)) > reader.left:
            raise CodecError("the blob is too short for its blocks")
        out = torch.empty(blocks, 16, 16, device=device)
        for index, (count, width) in enumerate(zip(counts, self.widths, strict=True)):
            if count:
                packed = bytes_tensor(reader.take(packed_size(count, width)), torch.uint8, device)
                codes = unpack(packed, count, width)
                level = self._table(index, device)[(codes & ((1 << (width - 1)) - 1)).to(torch.int64)]
                out[choice == index] = torch.where(codes >> (width - 1) > 0, -level, level).view(-1, 16, 16)
        out *= scale[:, :, None]
        return out.view(blocks, BLOCK) + mean[:, None]


class RotQ(Hop):
    """Rotate once, one 16-bit scale per block, levels for normal blocks divided by their largest, widths by reverse
    water-filling."""

    widths = (2, 3, 4, 5, 6, 8)
    overhead = 16 / 256
    _error = (0.68, 0.107, 0.0215, 0.0048, 0.00114, 0.00007)

    def prepare(self, x: torch.Tensor, key: Key) -> torch.Tensor:
        rows = blocks_of(x, BLOCK)
        segment = Segment(0, rows.numel(), len(rows), BLOCK, 0, 0)
        return rotation.forward(rows, segment, Key(key.seed, key.step)) * (1 / 16)

    def finish(self, rows: torch.Tensor, count: int, key: Key) -> torch.Tensor:
        segment = Segment(0, rows.numel(), len(rows), BLOCK, 0, 0)
        back = rotation.backward(rows.contiguous(), segment, Key(key.seed, key.step)) * (1 / 16)
        return back.reshape(-1)[:count]

    def choose(self, energy: torch.Tensor, spent: float) -> torch.Tensor:
        budget = self.bits - self.overhead - 3 / BLOCK - spent
        error = torch.tensor(self._error, dtype=torch.float64, device=energy.device)
        width = torch.tensor(self.widths, dtype=torch.float64, device=energy.device)
        scaled = energy / energy.sum().clamp(min=1e-300)
        low, high = -200.0, 10.0

        def at(log: float) -> torch.Tensor:
            cost: torch.Tensor = scaled[:, None] * error + 2.0**log * width
            return cost.argmin(1)

        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if float(width[at(middle)].mean()) <= budget else (middle, high)
        return at(high).to(torch.uint8)

    def quantize(self, rows: torch.Tensor, choice: torch.Tensor, uniform: Uniform) -> list[Buffer]:
        code = scales.to_codes(rows.abs().amax(1), up=True)
        unit = scales.to_scales(code)[:, None]
        y = (rows / torch.where(unit > 0, unit, torch.ones_like(unit))).clamp(-1.0, 1.0)
        u = uniform(rows.numel(), 0).view_as(y)
        body: list[Buffer] = [tensor_bytes(code)]
        for index, width in enumerate(self.widths):
            chosen = choice == index
            if not bool(chosen.any()):
                continue
            table, part = absmax_levels(width).to(rows.device), y[chosen]
            below = (torch.searchsorted(table, part, right=True) - 1).clamp(0, len(table) - 2)
            low, high = table[below], table[below + 1]
            level = (below + (u[chosen] < (part - low) / (high - low))).to(torch.uint8)
            body.append(tensor_bytes(pack(level.view(-1), width)))
        return body

    def dequantize(self, reader: Reader, choice: torch.Tensor) -> torch.Tensor:
        blocks, device = len(choice), choice.device
        code = bytes_tensor(reader.take(2 * blocks), torch.int16, device)
        scales.check_codes(code)
        counts = [int((choice == index).sum()) * BLOCK for index in range(len(self.widths))]
        if sum(packed_size(c, w) for c, w in zip(counts, self.widths, strict=True)) > reader.left:
            raise CodecError("the blob is too short for its blocks")
        out = torch.empty(blocks, BLOCK, device=device)
        for index, (count, width) in enumerate(zip(counts, self.widths, strict=True)):
            if count:
                packed = bytes_tensor(reader.take(packed_size(count, width)), torch.uint8, device)
                codes = unpack(packed, count, width)
                out[choice == index] = absmax_levels(width).to(device)[codes.to(torch.int64)].view(-1, BLOCK)
        scaled: torch.Tensor = out * scales.to_scales(code)[:, None]
        return scaled
