"""Codecs made to be decoded, added and encoded again at each hop: ``dynamiq`` and ``rotq``.

Both spend more bits on blocks where the sum over all workers has more energy: the width of each block of 256 is chosen
from one small reduction of the blocks' norms, so all workers choose the same. ``dynamiq`` (DynamiQ, 2026) then has
groups of 16 with scales of scales and uneven levels. ``rotq`` rotates each block once, with signs that all workers
share, and all hops work in the rotated domain, so that hops are linear and one level table fits all.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch

from ..blobs.pieces import Piece, fetch
from ..blobs.wire import Buffer, Header, Reader
from ..codec import bytes_tensor, piece, tensor_bytes
from ..cpu.calls import hops as loops
from ..errors import CodecError
from ..exchange.requests import Context, Gather, Program, Reduce
from ..primitives import philox, rotation, scales, sums
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..primitives.rotation import Segment
from ..quantizers.dithered import LARGEST
from ..quantizers.looped import Looped, Put
from ..quantizers.tables import largest_of
from ..specs.spec import Spec
from .budget import spend

BLOCK = 256
_PIECE = 1 << 8
"""Blocks at once with torch on a CPU, so that temporaries stay in the cache."""
Uniform = Callable[[int, int], torch.Tensor]
"""(count, first element) -> uniform [0, 1)."""


class Hop(Looped):
    """Base class: blocks of 256 of several widths. ``widths``: the possible bits per element of a block; ``errors``:
    the squared error per unit of energy with each width."""

    keyed = True
    widths: tuple[int, ...]
    errors: tuple[float, ...]
    overhead: float
    """Bits per element in addition to the codes."""
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
        """The scales (and means) that are written for each block in addition to its codes."""

    @abc.abstractmethod
    def quantize(self, rows: torch.Tensor, scale: list[torch.Tensor], index: int, u: torch.Tensor) -> torch.Tensor:
        """uint8 codes ``[blocks, 256]`` of blocks of one width."""

    @abc.abstractmethod
    def units(self, reader: Reader, blocks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(fp32 units, one for each block or 16; fp32 means, if there are any) from what ``scale`` wrote; checked
        on the CPU, where nobody waits for a device."""

    @abc.abstractmethod
    def levels(self, index: int) -> torch.Tensor:
        """fp32, rising: the values of the codes of this width, without signs."""

    def values(self, index: int) -> torch.Tensor:
        """fp32: the values of all codes of this width, including signs."""
        return self.levels(index)

    def choose(self, energy: torch.Tensor, spent: float) -> torch.Tensor:
        """uint8 ``[blocks]``: the index in ``widths`` of each block (energies: fp64), so that the mean keeps to the
        budget, of which ``spent`` bits an element have gone to the reduction of norms."""
        return spend(energy, self.errors, self.widths, self.bits - self.overhead - 3 / BLOCK - spent)

    def norms(self, energy: torch.Tensor) -> torch.Tensor:
        """The statistic that is reduced before the widths are chosen: each block's norm as a 16-bit float, from its
        fp64 energy. It is not the square, which could overflow although the values do not."""
        length = (energy.sqrt() * 2.0**-16).to(torch.float32).clamp(max=LARGEST * 2.0**-16)
        return scales.to_scales(scales.to_codes(length, up=False))

    def _frame(self, key: Key, count: int, exponent: int) -> loops.Frame:
        """How the compiled loops scale by 2^exponent and rotate the blocks of ``count`` elements."""
        half = exponent // 2
        signs = rotation.sign_words(segment_of(-(-count // BLOCK)), key).numpy() if self.turning else None
        return loops.Frame(2.0**half, 2.0 ** (exponent - half), signs)

    def body(
        self, parts: list[torch.Tensor], rows: torch.Tensor, choice: torch.Tensor, uniform: Uniform
    ) -> list[Piece]:
        """The body of ``[blocks, 256]`` by torch, from what ``scale`` made of them."""
        codes = torch.empty(rows.shape, dtype=torch.uint8, device=rows.device)
        step = _PIECE if rows.device.type == "cpu" else len(rows)
        for first in range(0, len(rows), step):
            here = slice(first, first + step)
            u = uniform(rows[here].numel(), first * BLOCK).view(-1, BLOCK)
            for index in range(len(self.widths)):
                chosen = _places(choice[here], index, rows.device)
                if len(chosen):
                    scale = [part.view(len(rows), -1)[here][chosen] for part in parts]
                    codes[here][chosen] = self.quantize(rows[here][chosen], scale, index, u[chosen])
        out: list[Piece] = [piece(part) for part in parts]
        for index, width in enumerate(self.widths):
            chosen = _places(choice, index, rows.device)
            if len(chosen):
                out.append(piece(pack(codes[chosen].view(-1), width)))
        return out

    def quick_body(
        self, x: torch.Tensor, frame: loops.Frame, choice: torch.Tensor, key: Key, members: int, rank: int, shared: int
    ) -> list[Buffer]:
        """As ``body``, of the vector itself, by the compiled loops."""
        widths = loops.Widths.of(choice, self.widths)
        made = loops.quantize(x, frame, widths, _table(type(self)), key, members, rank, shared)
        return [tensor_bytes(part) for part in made if part.numel()]

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
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

    def _head(self, reader: Reader, header: Header) -> tuple[int, torch.Tensor]:
        """(the exponent, which width each block has: on the CPU, where nobody waits for it)."""
        blocks = -(-header.elements // BLOCK)
        low, high = reader.byte(), reader.byte()
        exponent = (low | high << 8) - (1 << 16 if high & 0x80 else 0)
        if not -200 < exponent < 200:
            raise CodecError("the blob has an absurd exponent")
        choice = unpack(bytes_tensor(reader.take(packed_size(blocks, 3)), torch.uint8), blocks, 3)
        if int(choice.max()) >= len(self.widths):
            raise CodecError("the blob has a block of unknown width")
        return exponent, choice

    def opened(self, reader: Reader, header: Header) -> Put:
        n, device = header.elements, torch.device("cpu")
        exponent, choice = self._head(reader, header)
        units, means = self.units(reader, len(choice), device)
        widths = loops.Widths.of(choice, self.widths)
        packed, frame = reader.take(widths.size), self._frame(self._key(header), n, exponent)
        numbers = packed, widths, _values(type(self)), units, means, frame
        return lambda out, weight: loops.dequantize(out, *numbers, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        exponent, choice = self._head(reader, header)
        flat = self.finish(self.dequantize(reader, choice, device), header.elements, self._key(header))
        power = torch.tensor(exponent, device=device)
        half = torch.div(power, 2, rounding_mode="floor")
        return torch.ldexp(torch.ldexp(flat, half), power - half).clamp(-LARGEST, LARGEST)

    def dequantize(self, reader: Reader, choice: torch.Tensor, device: torch.device) -> torch.Tensor:
        """``[blocks, 256]``, fp32, of a body."""
        blocks = len(choice)
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
                values = self.values(index).to(device)[codes.to(torch.int32)].view(-1, BLOCK)
                out[_places(choice, index, device)] = values
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
            """Correlated rounding: for each element, the workers' numbers are in different n-ths of [0, 1)."""
            turn = philox.words(count, shared, 2, start, x.device) + context.rank
            own = philox.uniform(count, key.private, 0, start, x.device)
            return ((turn % context.size).to(torch.float32) + own) / context.size

        if quick:
            body = self.quick_body(flat, frame, choice, key.private, context.size, context.rank, context.tensor_seed)
            blob = b"".join(body)
        else:
            made = self.body(self.scale(rows), rows, choice, uniform)
            blob = b"".join(fetch(made)[0])
        answers = yield Gather(blob)
        context.own = self.finish(self.dequantize(Reader(blob), choice, flat.device), n, key)
        summed = torch.zeros(len(choice), BLOCK, device=flat.device)
        for other, _ in answers:
            summed += self.dequantize(Reader(other), choice, flat.device)
        return self.finish(summed, n, key).view(x.shape)


def _places(choice: torch.Tensor, index: int, device: torch.device) -> torch.Tensor:
    """The indices of the blocks with this width; ``choice`` is on the CPU, so their number is known without waiting for
    the device."""
    return torch.from_numpy(np.flatnonzero(choice.numpy() == index)).to(device)


def segment_of(blocks: int) -> Segment:
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


def between(y: torch.Tensor, levels: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """uint8: the level at or below y, or the next one with a probability proportional to the distance."""
    table = levels.to(y.device)
    below = (torch.searchsorted(table, y, right=True) - 1).clamp(0, len(table) - 2)
    low, high = table[below], table[below + 1]
    return (below + (u < (y - low) / (high - low))).to(torch.uint8)
