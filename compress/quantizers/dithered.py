"""Scalar quantisers with random rounding: ``qsgd``, ``terngrad``, ``nuqsgd``, ``natural``; and ``sign``."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor, piece
from ..cpu.calls import values as loops
from ..errors import CodecError
from ..primitives import philox, scales, sums
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..specs.spec import Spec
from .looped import Looped, Put
from .tables import Parts, Tabled, blocks_of, largest_of, pieces

LARGEST = 3.4028234663852886e38


def norm(x: torch.Tensor, size: int, kind: str) -> torch.Tensor:
    """The max or l2 norm of each ``size`` neighbours of a flat vector, fp32, clamped to fp32's range."""
    return largest_of(x, size) if kind == "max" else sums.norms(x, size).clamp(max=LARGEST)


class Qsgd(Tabled):
    """QSGD (Alistarh et al., NeurIPS 2017): |x| / norm to one of 2^(b-1) equal levels, at random, and a sign."""

    kind = loops.EQUAL

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits, self.bucket, self.norm = spec.number("bits"), spec.number("bucket"), spec.word("norm")

    def _size(self, n: int) -> int:
        return self.bucket or n

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        size = self._size(x.numel())
        code = scales.to_codes(norm(x, size, self.norm), up=True)
        unit = scales.to_scales(code)
        if self.quick(x.numel(), x.device):
            packed = loops.dithered(x, size, unit, self.kind, self.bits, key.dither, 1 << (self.bits - 1))
            return [piece(code), piece(packed)]
        unit = torch.where(unit > 0, unit, torch.ones_like(unit))[:, None]
        codes = torch.empty(x.numel(), dtype=torch.uint8, device=x.device)
        for start, stop in pieces(x.numel(), size, x.device):
            rows = blocks_of(x[start:stop], min(size, stop - start))
            y = (rows / unit[start // size :][: len(rows)]).view(-1)[: stop - start]
            u = philox.uniform(stop - start, key.dither, 0, start, x.device)
            codes[start:stop] = self.levels(y, u)
        return [piece(code), piece(pack(codes, self.bits))]

    def levels(self, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """uint8 codes of y in [-1, 1]."""
        s = (1 << (self.bits - 1)) - 1
        level = (y.abs() * s + u).floor_().clamp_(max=s)
        return (torch.where(y < 0, -level, level) + (s + 1)).to(torch.uint8)

    def table(self) -> torch.Tensor:
        """fp32: the values of all codes, relative to a bucket's norm."""
        s = (1 << (self.bits - 1)) - 1
        return (torch.arange(2 * s + 2, dtype=torch.float32) - float(s + 1)) / float(s)

    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        n = header.elements
        size = self._size(n)
        scale_bytes, packed = reader.take(2 * -(-n // size)), reader.take(packed_size(n, self.bits))
        code = bytes_tensor(scale_bytes, torch.int16, device)
        scales.check_codes(code)
        return Parts(packed, self.table().to(device), scales.to_scales(code), size, self.bits)


class Nuqsgd(Qsgd):
    """NUQSGD (Ramezani-Kebrya et al., JMLR 2021): the levels are 0, and powers of two from 1 down. The level 0 is as in
    the paper; the public code lacks it, and rounds small values away from zero."""

    kind = loops.POWERS

    def levels(self, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        count = 1 << (self.bits - 1)
        lowest = -(count - 2)
        a = y.abs()
        exponent = (torch.frexp(a)[1] - 1).clamp(min=lowest)
        low = torch.where(a < 2.0**lowest, torch.zeros_like(a), torch.ldexp(torch.ones_like(a), exponent))
        gap = torch.where(a < 2.0**lowest, torch.full_like(a, 2.0**lowest), low)
        index = torch.where(a < 2.0**lowest, 0, exponent - lowest + 1)
        index = (index + (u < (a - low) / gap)).clamp(max=count - 1)
        return (index | (y < 0).to(torch.int32) << (self.bits - 1)).to(torch.uint8)

    def table(self) -> torch.Tensor:
        count = 1 << (self.bits - 1)
        ladder = [0.0] + [2.0 ** (j - (count - 2)) for j in range(count - 1)]
        return torch.tensor(ladder + [-v for v in ladder])


class Terngrad(Looped):
    """TernGrad (Wen et al., NeurIPS 2017): -1, 0 or 1 times the largest magnitude, five values in a byte. Clipping at
    ``clip`` standard deviations (0: none) lowers the variance and adds a bias."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.clip = spec.real("clip")

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        n = x.numel()
        if self.clip:
            first, second = (float(sums.sums(x, n, what)) / n for what in (sums.VALUES, sums.SQUARES))
            bound = self.clip * max(0.0, second - first * first) ** 0.5
            x = x.clamp(-bound, bound)
        scale = largest_of(x, n)
        if self.quick(n, x.device):
            return [piece(scale), piece(loops.dithered(x, n, scale, loops.TERNARY, 2, key.dither))]
        safe = torch.where(scale > 0, scale, torch.ones_like(scale))
        trit = torch.empty(n, dtype=torch.uint8, device=x.device)
        for start, stop in pieces(n, n, x.device):
            part = x[start:stop]
            hit = philox.uniform(stop - start, key.dither, 0, start, x.device) < part.abs() / safe
            trit[start:stop] = torch.where(hit, torch.where(part < 0, 0, 2), 1)
        digits = torch.nn.functional.pad(trit, (0, -n % 5), value=1).view(-1, 5)
        byte = digits[:, 0].clone()
        for lane in range(1, 5):
            byte += digits[:, lane] * 3**lane
        return [piece(scale), piece(byte)]

    def _body(self, reader: Reader, header: Header, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(bytes, fp32 [243, 5]: the five values of each possible byte)."""
        scale, packed = reader.float32(), reader.take(-(-header.elements // 5))
        code = bytes_tensor(packed, torch.uint8, device)
        if int(code.max()) > 242:
            raise CodecError("the blob has a byte that is no five ternary digits")
        place = torch.tensor([1, 3, 9, 27, 81], device=device)
        trits = (torch.arange(243, device=device)[:, None] // place) % 3 - 1
        return code, trits.to(torch.float32) * scale

    def opened(self, reader: Reader, header: Header) -> Put:
        code, values = self._body(reader, header, torch.device("cpu"))
        return lambda out, weight: loops.add_ternary(out, code.numpy(), values, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        code, values = self._body(reader, header, device)
        return values.index_select(0, code.to(torch.int32)).view(-1)[: header.elements]


class Natural(Looped):
    """Natural compression (Horváth et al., 2019): the sign and a power of two, up or down at random; 9 bits.

    Adding a random number to the mantissa bits and keeping only sign and exponent does exactly this, also for
    denormals.
    """

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        n = x.numel()
        if self.quick(n, x.device):
            return [piece(loops.dithered(x, n, torch.ones(1), loops.NATURAL, 9, key.dither))]
        exponent = torch.empty(n, dtype=torch.uint8, device=x.device)
        for start, stop in pieces(n, n, x.device):
            bits = x[start:stop].view(torch.int32) & 0x7FFFFFFF
            noise = (philox.uniform(stop - start, key.dither, 0, start, x.device) * 8388608.0).to(torch.int32)
            exponent[start:stop] = ((bits + noise) >> 23).clamp(max=254)
        return [piece(exponent), piece(pack((x < 0).to(torch.uint8), 1))]

    def _body(self, reader: Reader, header: Header) -> memoryview:
        packed = reader.take(header.elements + packed_size(header.elements, 1))
        if int(bytes_tensor(packed[: header.elements], torch.uint8).max()) > 254:
            raise CodecError("the blob has an exponent that is not a number")
        return packed

    def opened(self, reader: Reader, header: Header) -> Put:
        packed = self._body(reader, header)
        return lambda out, weight: loops.add_natural(out, packed, weight)

    def plain(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n, packed = header.elements, self._body(reader, header)
        value = (bytes_tensor(packed[:n], torch.uint8, device).to(torch.int32) << 23).view(torch.float32)
        sign = unpack(bytes_tensor(packed[n:], torch.uint8, device), n, 1)
        return torch.where(sign > 0, -value, value)


class Sign(Tabled):
    """One bit, and one scale: mean|x| (least error; EF-signSGD, Karimireddy et al., ICML 2019), rms (keeps the norm, as
    1-bit Adam does) or two (the mean of each side; 1-bit SGD, Seide et al., 2014). sign(0) is +1."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.scale = spec.word("scale")

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        n = x.numel()
        bits = loops.signs(x) if self.quick(n, x.device) else pack((x >= 0).to(torch.uint8), 1)
        if self.scale == "two":
            below, above = (float(sums.sums(x, n, what)) for what in (sums.BELOW, sums.ABOVE))
            positive = int((x >= 0).sum())
            scale = struct.pack("<ff", below / max(1, n - positive), above / max(1, positive))
        elif self.scale == "rms":
            scale = struct.pack("<f", (float(sums.sums(x, n, sums.SQUARES)) / n) ** 0.5)
        else:
            scale = struct.pack("<f", float(sums.sums(x, n, sums.MAGNITUDES)) / n)
        return [scale, piece(bits)]

    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        n = header.elements
        below = reader.float32()
        above = reader.float32() if self.scale == "two" else below
        packed = reader.take(packed_size(n, 1))
        return Parts(packed, torch.tensor([-below, above], device=device), torch.ones(1, device=device), n, 1)
