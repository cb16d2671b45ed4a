"""Codecs whose encodings are integers that are added without decoding: ``global_qsgd`` and ``intsgd`` (and ``thc``).

All workers first agree on a statistic (one small reduction), then encode relative to it. The accumulator of the sum has
more bits than a code, so codes need no spare bits for the number of workers.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence

import torch

from ..blobs.pieces import Piece, onto
from ..blobs.wire import Header, Reader
from ..codec import Codec, bytes_tensor, piece, tensor_bytes
from ..cpu.calls import values as loops
from ..errors import CodecError
from ..exchange.requests import Context, Gather, Program, Reduce
from ..primitives import philox
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..quantizers.dithered import LARGEST, norm
from ..quantizers.tables import Parts, Tabled, largest_of, pieces
from ..specs.spec import Spec


class Summed(Codec):
    """levels(x, statistic) are integers in 0..2^bits - 1; restore(sum of the levels, statistic, workers) their sum."""

    bits: int
    reductions = 2
    statistic_op = "max"

    @abc.abstractmethod
    def statistic(self, x: torch.Tensor) -> torch.Tensor:
        """The statistic that the workers reduce first: fp32, of the same size on all."""

    @abc.abstractmethod
    def levels(self, x: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int) -> torch.Tensor:
        """int32, from 0 to top."""

    @abc.abstractmethod
    def restore(self, total: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int, count: int) -> torch.Tensor:
        """The fp32 sum ``[count]`` of the workers' vectors, from the sum of their levels."""

    def own(self, levels: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int, count: int) -> torch.Tensor:
        """One worker's part ``[count]`` of the sum of ``workers``."""
        return self.restore(levels, statistic, key, 1, count)

    @property
    @abc.abstractmethod
    def top(self) -> int:
        """The largest level."""

    def sum_bits(self, workers: int) -> int:
        """Bits that the sum of ``workers`` encodings needs."""
        return max(1, math.ceil(math.log2(self.top * workers + 1)))

    def to_codes(self, levels: torch.Tensor) -> torch.Tensor:
        """Levels -> uint8 codes on the wire; equal unless the codec has a table."""
        return levels.to(torch.uint8)

    def to_levels(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.to(torch.int32)

    def statistics(self, count: int) -> int:
        """How many numbers the statistic of ``count`` elements has."""
        return 1

    def levels_count(self, count: int) -> int:
        """How many levels ``count`` elements have (a rotation pads)."""
        return count

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        statistic = self.statistic(x)
        codes = self.to_codes(self.levels(x, statistic, key, 1))
        return [piece(statistic), piece(pack(codes, self.bits))]

    def body(self, reader: Reader, header: Header, device: torch.device) -> tuple[torch.Tensor, memoryview]:
        """(fp32 statistic, packed codes) of a body."""
        n = header.elements
        count = self.levels_count(n)
        head, packed = reader.take(4 * self.statistics(n)), reader.take(packed_size(count, self.bits))
        statistic = bytes_tensor(head, torch.float32)
        if not bool(torch.isfinite(statistic).all()) or float(statistic.min()) < 0:  # on the CPU: no wait for a device
            raise CodecError("the blob has a scale that is not finite")
        return onto(statistic, device), packed

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        count = self.levels_count(n)
        statistic, packed = self.body(reader, header, device)
        levels = self.to_levels(unpack(bytes_tensor(packed, torch.uint8, device), count, self.bits))
        return self.restore(levels, statistic, self._key(header), 1, n).clamp(-LARGEST, LARGEST)

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        flat = x.detach().reshape(-1).to(torch.float32) * context.weight
        if not bool(torch.isfinite(flat).all()):
            raise CodecError("a value is not finite: not encoded")
        key = Key(context.tensor_seed, context.step, context.rank, context.size)
        statistic = yield Reduce(self.statistic(flat), self.statistic_op)  # type: ignore[arg-type]
        levels = self.levels(flat, statistic, key, context.size)
        total = yield Reduce(levels, "sum", self.sum_bits(context.size))
        context.own = self.own(levels, statistic, key, context.size, flat.numel())
        return self.restore(total, statistic, key, context.size, flat.numel()).view(x.shape)


class Alone(Tabled, Summed):
    """A summed codec whose levels are multiples of one unit, so that one worker's blob decodes by a table and a
    unit."""

    @abc.abstractmethod
    def unit(self, statistic: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(fp32 values of all codes of one worker, fp32 ``[1]`` by which they are multiplied)."""

    @abc.abstractmethod
    def packed(self, x: torch.Tensor, statistic: torch.Tensor, key: Key) -> torch.Tensor:
        """``write``'s packed codes, by the compiled loops."""

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        if not self.quick(x.numel(), x.device):
            return super().write(x, key)
        statistic = self.statistic(x)
        return [piece(statistic), piece(self.packed(x, statistic, key))]

    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        statistic, packed = self.body(reader, header, device)
        table, unit = self.unit(statistic, header.elements)
        return Parts(packed, table, unit, header.elements, self.bits)


class GlobalQsgd(Alone):
    """Global-QSGD (Xin et al., 2023), standard dithering: equal levels up to the largest |x| of all workers."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits = spec.number("bits")

    @property
    def top(self) -> int:
        return (1 << self.bits) - 2

    def statistic(self, x: torch.Tensor) -> torch.Tensor:
        return largest_of(x, x.numel()) if x.numel() else torch.zeros(1, device=x.device)

    def levels(self, x: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int) -> torch.Tensor:
        s, n = self.top // 2, x.numel()
        safe, out = torch.where(statistic > 0, statistic, torch.ones_like(statistic)), x.new_empty(n, dtype=torch.int32)
        for start, stop in pieces(n, max(1, n), x.device):
            y = x[start:stop] / safe
            level = (y.abs() * s + philox.uniform(stop - start, key.dither, 0, start, x.device)).floor().clamp(max=s)
            out[start:stop] = torch.where(y < 0, s - level, s + level)
        return out

    def packed(self, x: torch.Tensor, statistic: torch.Tensor, key: Key) -> torch.Tensor:
        return loops.dithered(x, x.numel(), statistic, loops.EQUAL, self.bits, key.dither, self.top // 2)

    def unit(self, statistic: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        s = self.top // 2
        codes = torch.arange(1 << self.bits, device=statistic.device)
        return (codes - s).to(torch.float32), statistic / float(s)

    def restore(self, total: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int, count: int) -> torch.Tensor:
        s = self.top // 2
        return (total - s * workers).to(torch.float32) * (statistic / float(s))


class GlobalExponential(Tabled):
    """Global-QSGD, exponential dithering: a sign and a power of two below twice the largest, 8 bits. Two encodings are
    combined without decoding, and each combination is unbiased. Combining in a tree, not in a ring, keeps the exponents
    in range."""

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        top = largest_of(x, x.numel())
        if self.quick(x.numel(), x.device):
            codes = loops.dithered(x, x.numel(), top, loops.EXPONENTS, 8, key.dither, 2)
        else:
            codes = torch.empty(x.numel(), dtype=torch.uint8, device=x.device)
            for start, stop in pieces(x.numel(), x.numel(), x.device):
                codes[start:stop] = self.codes(x[start:stop], top, 1, key, start)
        return [piece(top), piece(codes)]

    def codes(self, x: torch.Tensor, top: torch.Tensor, workers: int, key: Key, start: int = 0) -> torch.Tensor:
        """uint8: 0 is zero, else sign << 7 | -exponent (1 .. 127) of a fraction of 2 * workers * top; of the elements
        ``start`` on."""
        safe = torch.where(top > 0, top, torch.ones_like(top))
        y = (x.abs() / safe) / float(2 * workers)
        u = philox.uniform(x.numel(), key.dither, 0, start, x.device)
        mantissa, exponent = torch.frexp(y)
        exponent = torch.where(u < 2 * mantissa - 1, exponent, exponent - 1)
        code = (-exponent).clamp(min=1)
        code = torch.where((y == 0) | (code > 127), 0, code)
        return (code | torch.where(code > 0, (x < 0).to(torch.int32) << 7, 0)).to(torch.uint8)

    def combine(self, a: torch.Tensor, b: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """The code of a sum of two codes, unbiased. u: uniform in [0, 1)."""
        ea, eb = (a & 127).to(torch.int32), (b & 127).to(torch.int32)
        swap = (eb != 0) & ((ea == 0) | (eb < ea))
        large, small = torch.where(swap, b, a), torch.where(swap, a, b)
        e1, e2 = (large & 127).to(torch.int32), (small & 127).to(torch.int32)
        gap = torch.ldexp(torch.ones_like(u), e1 - e2)
        same = (large >> 7) == (small >> 7)
        up = (e1 - (u < gap).to(torch.int32)).clamp(min=1)
        down = torch.where(e1 == e2, 0, e1 + (u < 2 * gap).to(torch.int32))
        exponent = torch.where(e2 == 0, e1, torch.where(same, up, down))
        exponent = torch.where(exponent > 127, 0, exponent)
        sign = (large >> 7).to(torch.int32)
        return (exponent | torch.where(exponent > 0, sign << 7, 0)).to(torch.uint8)

    def values(self, codes: torch.Tensor, top: torch.Tensor, workers: int) -> torch.Tensor:
        exponent = (codes & 127).to(torch.int32)
        size = torch.ldexp(torch.full(codes.shape, 2.0 * workers, device=codes.device), -exponent)
        size = torch.where(exponent > 0, size, torch.zeros_like(size)) * top
        return torch.where((codes >> 7) > 0, -size, size)

    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        top, n = torch.tensor([reader.float32()], device=device), header.elements
        table = self.values(torch.arange(256, dtype=torch.int32, device=device), torch.ones(1, device=device), 1)
        return Parts(reader.take(n), table, top, n, 8)

    def rounds(self, x: torch.Tensor, context: Context) -> Program:
        flat = x.detach().reshape(-1).to(torch.float32) * context.weight
        top = yield Reduce(flat.abs().amax().view(1) if flat.numel() else torch.zeros(1, device=flat.device), "max")
        codes = self.codes(flat, top, context.size, Key(context.tensor_seed, context.step, context.rank, context.size))
        answers = yield Gather(tensor_bytes(codes).tobytes())
        context.own = self.values(codes, top, context.size)
        level = [bytes_tensor(blob, torch.uint8, flat.device) for blob, _ in answers]
        depth = 0
        while len(level) > 1:
            depth += 1
            pairs = [
                self.combine(
                    a, b, philox.uniform(len(a), Key(context.tensor_seed, context.step), 16 * depth + i, 0, a.device)
                )
                for i, (a, b) in enumerate(zip(level[::2], level[1::2], strict=False))
            ]
            level = pairs + level[len(level) // 2 * 2 :]
        return self.values(level[0], top, context.size).view(x.shape)


class IntSgd(Alone):
    """IntSGD (Mishchenko et al., ICLR 2022): round(alpha * x) at random, alpha known everywhere.

    rule=norm: alpha = sqrt(d) / (sqrt(2) * |x|), as in the paper but with this step's norm instead of a running one, or
    less if the largest value would be clamped. The workers use the mean of these scales, so only a worker whose largest
    value is far beyond the others' is clamped. rule=max: the largest power of two that fits the range of 8 bits
    (HintSGD), which clamps nothing. ``gain`` multiplies alpha.
    """

    bits = 8

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.rule, self.gain = spec.word("rule"), spec.real("gain")
        self.statistic_op = "max" if self.rule == "max" else "sum"

    @property
    def top(self) -> int:
        return 254

    def statistic(self, x: torch.Tensor) -> torch.Tensor:
        if not x.numel():
            return torch.zeros(1, device=x.device)
        largest = largest_of(x, x.numel())
        if self.rule == "max":
            return largest
        whole = largest.double() * (self.gain * math.sqrt(x.numel() / 2.0) / 127.0)  # the scale that clamps nothing
        return torch.maximum(norm(x, x.numel(), "l2").double(), whole).clamp(max=LARGEST).to(torch.float32)

    def _alpha(self, statistic: torch.Tensor, workers: int, count: int) -> float:
        size = float(statistic) if self.rule == "max" else float(statistic) / workers
        if not size:
            return 1.0
        if self.rule == "max":
            return self.gain * 2.0 ** math.floor(math.log2(127.0 / size))
        return self.gain * math.sqrt(count / 2.0) / size

    def levels(self, x: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int) -> torch.Tensor:
        alpha = self._alpha(statistic, workers, x.numel())
        n, out = x.numel(), x.new_empty(x.numel(), dtype=torch.int32)
        for start, stop in pieces(n, max(1, n), x.device):
            y = x[start:stop].to(torch.float64) * alpha
            y += philox.uniform(stop - start, key.dither, 0, start, x.device)
            out[start:stop] = y.floor_().clamp_(-127, 127) + 127
        return out

    def packed(self, x: torch.Tensor, statistic: torch.Tensor, key: Key) -> torch.Tensor:
        alpha = self._alpha(statistic, 1, x.numel())
        return loops.dithered(x, x.numel(), torch.ones(1), loops.WHOLE, 8, key.dither, alpha)

    def unit(self, statistic: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.arange(256, dtype=torch.int32, device=statistic.device)
        values = self.own(codes, statistic, Key(), 1, count)
        return values.clamp(-LARGEST, LARGEST), torch.ones(1, device=statistic.device)

    def own(self, levels: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int, count: int) -> torch.Tensor:
        alpha = self._alpha(statistic, workers, count)
        return ((levels - 127).to(torch.float64) / alpha).to(torch.float32)

    def restore(self, total: torch.Tensor, statistic: torch.Tensor, key: Key, workers: int, count: int) -> torch.Tensor:
        alpha = self._alpha(statistic, workers, count)
        return ((total - 127 * workers).to(torch.float64) / alpha).to(torch.float32)
