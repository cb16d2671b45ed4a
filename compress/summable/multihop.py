"""Codecs made to be decoded, added and encoded again on the way: ``dynamiq`` and ``rotq``.

Both spend more bits where the sum of all workers has more energy: widths per block of 256 are chosen from one small
reduction of the blocks' energies, so all workers choose the same. ``dynamiq`` (DynamiQ, 2026) then has groups of 16
with scales of scales and uneven levels. ``rotq`` rotates each block once, with signs that all workers share, and stays
in the rotated domain on every hop, so that hops are linear and one level table fits all.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from ..codec import bytes_tensor, tensor_bytes
from ..cpu import dispatch_hops as loops
from ..errors import CodecError
from ..exchange.requests import Context, Gather, Program, Reduce
from ..primitives import philox, rotation, scales, sums
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..primitives.rotation import Segment
from ..primitives.tables import absmax_levels
from ..quantizers.dithered import LARGEST
from ..quantizers.looped import Looped, Put
from ..quantizers.tables import blocks_of, largest_of
from ..spec import Spec
from ..wire import Buffer, Header, Reader

BLOCK = 256
_PIECE = 1 << 8
"""Blocks at once with torch on a CPU: what is made on the way stays in the cache."""
Uniform = Callable[[int, int], torch.Tensor]
"""(count, first element) -> uniform [0, 1)."""


def spend(energy: torch.Tensor, errors: tuple[float, ...], widths: tuple[int, ...], budget: float) -> torch.Tensor:
    """uint8: the index in rising ``widths`` of each block, whose mean is at most ``budget``, for the least sum of
    energy * errors[index]. What is left where the next step does not fit for all that it is due to goes to the first.

    energy: fp64, not negative. The gain of a bit falls from width to width. Only comparisons and single products
    decide: all devices choose alike.
    """
    values = energy.cpu().numpy()
    count, width = len(values), np.array(widths)
    step = np.diff(width) / -np.diff(np.array(errors))  # the next width where a block's energy is over step * price
    ordered = np.sort(values)

    def total(price: float) -> int:
        above = count - np.searchsorted(ordered, price * step, side="right")
        return int(widths[0] * count + (above * np.diff(width)).sum())

    def at(price: float) -> np.ndarray:
        chosen: np.ndarray = (values[:, None] > price * step).sum(1).astype(np.uint8)
        return chosen

    left = int(budget * count)
    low, high = -1, int(np.float64(1e300).view(np.int64))  # of bits of prices: their order is that of the numbers
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if total(float(np.int64(middle).view(np.float64))) <= left else (middle, high)
    price = float(np.int64(high).view(np.float64))
    choice = at(price)
    if low >= 0:
        more = at(float(np.int64(low).view(np.float64)))
        extra = np.cumsum(width[more] - width[choice])
        choice = np.where(extra <= left - total(price), more, choice)
    return torch.from_numpy(choice).to(energy.device)


class Hop(Looped):
    """Blocks of 256 of several widths. ``widths``: the bits that a block's element may have; ``errors``: of a unit of
    energy, with each."""

    keyed = True
    widths: tuple[int, ...]
    errors: tuple[float, ...]
    overhead: float
    """Bits per element beside the codes."""
    turning = False
    """Whether blocks are rotated."""

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
    def scale(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """What is written of each block beside its codes."""

    @abc.abstractmethod
    def quantize(self, rows: torch.Tensor, scale: list[torch.Tensor], index: int, u: torch.Tensor) -> torch.Tensor:
        """uint8 codes ``[blocks, 256]`` of blocks of one width."""

    @abc.abstractmethod
    def units(self, reader: Reader, blocks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(fp32 units, one for each block or 16; fp32 means, if there are any) from what ``scale`` wrote."""

    @abc.abstractmethod
    def levels(self, index: int) -> torch.Tensor:
        """fp32, rising: what a code of this width, without a sign, stands for."""

    def values(self, index: int) -> torch.Tensor:
        """fp32: what every code of this width stands for."""
        return self.levels(index)

    def choose(self, energy: torch.Tensor, spent: float) -> torch.Tensor:
        """uint8 ``[blocks]``: the index in ``widths`` of each block (energies: fp64), so that the mean keeps to the
        budget, of which ``spent`` bits an element have gone to the reduction of norms."""
        return spend(energy, self.errors, self.widths, self.bits - self.overhead - 3 / BLOCK - spent)

    def norms(self, energy: torch.Tensor) -> torch.Tensor:
        """What is reduced before the widths are chosen: the norm of each block, in 16-bit floats, from its fp64 energy.
        Not its square, whose range would end where that of the values does not."""
        length = (energy.sqrt() * 2.0**-16).to(torch.float32).clamp(max=LARGEST * 2.0**-16)
        return scales.to_scales(scales.to_codes(length, up=False))

    def _frame(self, key: Key, count: int, exponent: int) -> loops.Frame:
        """How the compiled loops scale by 2^exponent and turn the blocks of ``count`` elements."""
        half = exponent // 2
        signs = rotation.sign_words(_segment(-(-count // BLOCK)), key).numpy() if self.turning else None
        return loops.Frame(2.0**half, 2.0 ** (exponent - half), signs)

    def body(
        self, parts: list[torch.Tensor], rows: torch.Tensor, choice: torch.Tensor, uniform: Uniform
    ) -> list[Buffer]:
        """The body of ``[blocks, 256]`` by torch, from what ``scale`` made of them."""
        codes = torch.empty(rows.shape, dtype=torch.uint8, device=rows.device)
        step = _PIECE if rows.device.type == "cpu" else len(rows)
        for first in range(0, len(rows), step):
            here = slice(first, first + step)
            u = uniform(rows[here].numel(), first * BLOCK).view(-1, BLOCK)
            for index in range(len(self.widths)):
                chosen = choice[here] == index
                if bool(chosen.any()):
                    scale = [part.view(len(rows), -1)[here][chosen] for part in parts]
                    codes[here][chosen] = self.quantize(rows[here][chosen], scale, index, u[chosen])
        out: list[Buffer] = [tensor_bytes(part) for part in parts]
        for index, width in enumerate(self.widths):
            chosen = choice == index
            if bool(chosen.any()):
                out.append(tensor_bytes(pack(codes[chosen].view(-1), width)))
        return out

    def quick_body(
        self, x: torch.Tensor, frame: loops.Frame, choice: torch.Tensor, key: Key, members: int, rank: int, shared: int
    ) -> list[Buffer]:
        """As ``body``, of the vector itself, by the compiled loops."""
        widths = loops.Widths.of(choice, self.widths)
        made = loops.quantize(x, frame, widths, _table(type(self)), key, members, rank, shared)
        return [tensor_bytes(part) for part in made if part.numel()]

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        n = x.numel()
        exponent = int(torch.frexp(largest_of(x, n))[1])
        head = bytes([exponent & 0xFF, exponent >> 8 & 0xFF])
        if self.quick(n, x.device):
            frame = self._frame(key, n, -exponent)
            choice = self.choose(self.norms(loops.energies(x, frame)).double().square(), 0.0)
            body = self.quick_body(x, frame, choice, key.dither, 0, 0, 0)
            return [head, tensor_bytes(pack(choice, 3)), *body]
        half = -exponent // 2
        power, rest = (torch.tensor(one, device=x.device) for one in (half, -exponent - half))
        rows = self.prepare(torch.ldexp(torch.ldexp(x, power), rest), key)
        choice = self.choose(self.norms(sums.sums(rows.view(-1), BLOCK, sums.SQUARES)).double().square(), 0.0)

        def uniform(count: int, start: int) -> torch.Tensor:
            return philox.uniform(count, key.dither, 0, start, x.device)

        return [head, tensor_bytes(pack(choice, 3)), *self.body(self.scale(rows), rows, choice, uniform)]

    def _head(self, reader: Reader, header: Header, device: torch.device) -> tuple[int, torch.Tensor]:
        """(the exponent, which width each block has)."""
        blocks = -(-header.elements // BLOCK)
        low, high = reader.byte(), reader.byte()
        exponent = (low | high << 8) - (1 << 16 if high & 0x80 else 0)
        if not -200 < exponent < 200:
            raise CodecError("the blob has an absurd exponent")
        choice = unpack(bytes_tensor(reader.take(packed_size(blocks, 3)), torch.uint8, device), blocks, 3)
        if int(choice.max()) >= len(self.widths):
            raise CodecError("the blob has a block of unknown width")
        return exponent, choice

    def opened(self, reader: Reader, header: Header) -> Put:
        n, device = header.elements, torch.device("cpu")
        exponent, choice = self._head(reader, header, device)
        units, means = self.units(reader, len(choice), device)
        widths = loops.Widths.of(choice, self.widths)
        packed, frame = reader.take(widths.size), self._frame(self._key(header), n, exponent)
        numbers = packed, widths, _values(type(self)), units, means, frame
        return lambda out, weight: loops.dequantize(out, *numbers, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        exponent, choice = self._head(reader, header, device)
        flat = self.finish(self.dequantize(reader, choice), header.elements, self._key(header))
        power = torch.tensor(exponent, device=device)
        half = torch.div(power, 2, rounding_mode="floor")
        return torch.ldexp(torch.ldexp(flat, half), power - half).clamp(-LARGEST, LARGEST)

    def dequantize(self, reader: Reader, choice: torch.Tensor) -> torch.Tensor:
        """``[blocks, 256]``, fp32, of a body."""
        blocks, device = len(choice), choice.device
        units, means = self.units(reader, blocks, device)
        counts = [int((choice == index).sum()) * BLOCK for index in range(len(self.widths))]
        if sum(packed_size(c, w) for c, w in zip(counts, self.widths, strict=True)) > reader.left:
            raise CodecError("the blob is too short for its blocks")
        if device.type == "cpu" and self.quick(BLOCK * blocks, device):
            widths, out = loops.Widths.of(choice, self.widths), torch.empty(blocks * BLOCK)
            packed = reader.take(widths.size)
            loops.dequantize(out, packed, widths, _values(type(self)), units, means, None, None)
            return out.view(blocks, BLOCK)
        out = torch.empty(blocks, BLOCK, device=device)
        for index, (count, width) in enumerate(zip(counts, self.widths, strict=True)):
            if count:
                packed = reader.take(packed_size(count, width))
                codes = unpack(bytes_tensor(packed, torch.uint8, device), count, width)
                out[choice == index] = self.values(index).to(device)[codes.to(torch.int32)].view(-1, BLOCK)
        out = (out.view(len(units), -1) * units[:, None]).view(blocks, BLOCK)
        return out if means is None else out.add_(means[:, None])

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        flat = x.detach().reshape(-1).to(torch.float32) * context.weight
        if not bool(torch.isfinite(flat).all()):
            raise CodecError("a value is not finite: not encoded")
        n, shared = flat.numel(), Key(context.tensor_seed, context.step)
        key, quick = Key(context.tensor_seed, context.step, context.rank), self.quick(n, flat.device)
        frame = self._frame(key, n, 0)
        rows = torch.empty(0) if quick else self.prepare(flat, key)
        energy = loops.energies(flat, frame) if quick else sums.sums(rows.view(-1), BLOCK, sums.SQUARES)
        if not bool(torch.isfinite(energy).all()):
            raise CodecError(rotation.BEYOND)
        total = yield Reduce(self.norms(energy), "sum", 16)
        choice = self.choose(total.double().square(), 16 / BLOCK)

        def uniform(count: int, start: int) -> torch.Tensor:
            """Correlated rounding: the workers' values at an element are in different n-ths of [0, 1)."""
            turn = philox.words(count, shared, 2, start, x.device) + context.rank
            own = philox.uniform(count, key.private, 0, start, x.device)
            return ((turn % context.size).to(torch.float32) + own) / context.size

        if quick:
            body = self.quick_body(flat, frame, choice, key.private, context.size, context.rank, context.tensor_seed)
        else:
            body = self.body(self.scale(rows), rows, choice, uniform)
        blob = b"".join(body)
        answers = yield Gather(blob)
        context.own = self.finish(self.dequantize(Reader(blob), choice), n, key)
        summed = torch.zeros(len(choice), BLOCK, device=flat.device)
        for other, _ in answers:
            summed += self.dequantize(Reader(other), choice)
        return self.finish(summed, n, key).view(x.shape)


def _segment(blocks: int) -> Segment:
    return Segment(0, blocks * BLOCK, blocks, BLOCK, 0, 0)


@lru_cache(maxsize=8)
def _table(kind: type[Hop]) -> loops.Table:
    codec = object.__new__(kind)
    return loops.table([codec.levels(index) for index in range(len(kind.widths))])


@lru_cache(maxsize=8)
def _values(kind: type[Hop]) -> np.ndarray:
    codec = object.__new__(kind)
    out = np.zeros((len(kind.widths), 256), np.float32)
    for index in range(len(kind.widths)):
        values = codec.values(index).numpy()
        out[index, : len(values)] = values
    return out


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
        return _between(y, self.levels(index), u) | negative << (self.widths[index] - 1)

    def units(self, reader: Reader, blocks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        mean = bytes_tensor(reader.take(2 * blocks), torch.bfloat16, device).to(torch.float32)
        code = bytes_tensor(reader.take(2 * blocks), torch.int16, device)
        scales.check_codes(code)
        if not bool(torch.isfinite(mean).all()):
            raise CodecError("the blob has a mean that is not finite")
        fine = bytes_tensor(reader.take(16 * blocks), torch.uint8, device).view(blocks, 16).to(torch.float32)
        return (fine * (scales.to_scales(code) / 255.0)[:, None]).view(-1), mean


class RotQ(Hop):
    """Rotate once, one 16-bit scale per block, levels for normal blocks divided by their largest, widths by reverse
    water-filling."""

    widths = (2, 3, 4, 5, 6, 8)
    errors = (0.68, 0.107, 0.0215, 0.0048, 0.00114, 0.00007)
    overhead = 16 / 256
    turning = True

    def prepare(self, x: torch.Tensor, key: Key) -> torch.Tensor:
        rows = blocks_of(x, BLOCK)
        return rotation.forward(rows, _segment(len(rows)), Key(key.seed, key.step)) * (1 / 16)

    def finish(self, rows: torch.Tensor, count: int, key: Key) -> torch.Tensor:
        back = rotation.backward(rows.contiguous(), _segment(len(rows)), Key(key.seed, key.step)) * (1 / 16)
        return back.reshape(-1)[:count]

    def levels(self, index: int) -> torch.Tensor:
        return absmax_levels(self.widths[index])

    def scale(self, rows: torch.Tensor) -> list[torch.Tensor]:
        return [scales.to_codes(rows.abs().amax(1), up=True)]

    def quantize(self, rows: torch.Tensor, scale: list[torch.Tensor], index: int, u: torch.Tensor) -> torch.Tensor:
        unit = scales.to_scales(scale[0].view(-1))[:, None]
        y = (rows / torch.where(unit > 0, unit, torch.ones_like(unit))).clamp(-1.0, 1.0)
        return _between(y, self.levels(index), u)

    def units(self, reader: Reader, blocks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        code = bytes_tensor(reader.take(2 * blocks), torch.int16, device)
        scales.check_codes(code)
        return scales.to_scales(code), None


def _between(y: torch.Tensor, levels: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """uint8: the level at or below y, or with the chance of its distance the next."""
    table = levels.to(y.device)
    below = (torch.searchsorted(table, y, right=True) - 1).clamp(0, len(table) - 2)
    low, high = table[below], table[below + 1]
    return (below + (u < (y - low) / (high - low))).to(torch.uint8)
