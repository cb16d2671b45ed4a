"""Scalar quantisers with random rounding: ``qsgd``, ``terngrad``, ``nuqsgd``, ``natural``; and ``sign``."""

from __future__ import annotations

import struct

import torch

from ..codec import Codec, bytes_tensor, tensor_bytes
from ..cpu import dispatch as fast
from ..errors import CodecError
from ..primitives import philox, scales
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size, unpack
from ..spec import Spec
from ..wire import Buffer, Header, Reader
from .tables import Parts, Tabled, blocks_of, largest_of

LARGEST = 3.4028234663852886e38


def norm(rows: torch.Tensor, kind: str) -> torch.Tensor:
    """The max or l2 norm of each row, fp32; the squares can't overflow or vanish."""
    largest = rows.abs().amax(1)
    if kind == "max":
        return largest
    safe = torch.where(largest > 0, largest, torch.ones_like(largest))
    ratio = (rows / safe[:, None]).square().sum(1, dtype=torch.float64).sqrt().to(torch.float32)
    return (largest * ratio).clamp(max=LARGEST)


class Qsgd(Tabled):
    """QSGD (Alistarh et al., NeurIPS 2017): |x| / norm to one of 2^(b-1) equal levels, at random, and a sign."""

    equal = True
    """Whether levels are equally spaced."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bits, self.bucket, self.norm = spec.number("bits"), spec.number("bucket"), spec.word("norm")

    def _size(self, n: int) -> int:
        return self.bucket or n

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        size = self._size(x.numel())
        found = largest_of(x, size) if self.norm == "max" else norm(blocks_of(x, size), self.norm)
        code = scales.to_codes(found, up=True)
        if x.device.type == "cpu" and fast.worth(x.numel()):
            packed = fast.dithered(x, size, scales.to_scales(code), self.bits, self.equal, key.dither)
            return [tensor_bytes(code), tensor_bytes(packed)]
        rows = blocks_of(x, size)
        unit = scales.to_scales(code)[:, None]
        y = rows / torch.where(unit > 0, unit, torch.ones_like(unit))
        u = philox.uniform(x.numel(), key.dither, 0, 0, x.device)
        codes = self.levels(y.view(-1)[: x.numel()], u)
        return [tensor_bytes(code), tensor_bytes(pack(codes, self.bits))]

    def levels(self, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """uint8 codes of y in [-1, 1]."""
        s = (1 << (self.bits - 1)) - 1
        level = (y.abs() * s + u).floor_().clamp_(max=s)
        return (torch.where(y < 0, -level, level) + (s + 1)).to(torch.uint8)

    def table(self) -> torch.Tensor:
        """fp32: the values of all codes, as parts of a bucket's norm."""
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
    """NUQSGD (Ramezani-Kebrya et al., JMLR 2021): levels 0 and powers of two down from 1. The zero level is here, as in
    the paper and not in the public code, which rounds small values away from zero."""

    equal = False

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


class Terngrad(Codec):
    """TernGrad (Wen et al., NeurIPS 2017): -1, 0 or 1 times the largest, five values to a byte. Clipping at
    ``clip`` standard deviations (0: none) lowers the variance and is a bias."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.clip = spec.real("clip")

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        if self.clip:
            bound = self.clip * float(x.double().std(correction=0))
            x = x.clamp(-bound, bound)
        scale = x.abs().max()
        y = x.abs() / torch.where(scale > 0, scale, torch.ones_like(scale))
        hit = philox.uniform(x.numel(), key.dither, 0, 0, x.device) < y
        trit = torch.where(hit, torch.where(x < 0, 0, 2), 1).to(torch.uint8)
        digits = torch.nn.functional.pad(trit, (0, -x.numel() % 5), value=1).view(-1, 5)
        place = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8, device=x.device)
        return [tensor_bytes(scale.view(1)), tensor_bytes((digits * place).sum(1).to(torch.uint8))]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        scale = reader.float32()
        code = bytes_tensor(reader.take(-(-n // 5)), torch.uint8, device).to(torch.int32)
        if int(code.max()) > 242:
            raise CodecError("the blob has a byte that is no five ternary digits")
        place = torch.tensor([1, 3, 9, 27, 81], dtype=torch.int32, device=device)
        trits = (code[:, None] // place) % 3 - 1
        return trits.view(-1)[:n].to(torch.float32) * scale


class Natural(Codec):
    """Natural compression (Horváth et al., 2019): the sign and a power of two, up or down at random; 9 bits.

    Adding random bits below the mantissa and keeping the exponent is exactly that, denormals included.
    """

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        bits = x.view(torch.int32) & 0x7FFFFFFF
        noise = (philox.uniform(x.numel(), key.dither, 0, 0, x.device) * 8388608.0).to(torch.int32)
        exponent = ((bits + noise) >> 23).clamp(max=254).to(torch.uint8)
        return [tensor_bytes(exponent), tensor_bytes(pack((x < 0).to(torch.uint8), 1))]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        exponent_bytes, sign_bytes = reader.take(n), reader.take(packed_size(n, 1))
        exponent = bytes_tensor(exponent_bytes, torch.uint8, device).to(torch.int32)
        if int(exponent.max()) > 254:
            raise CodecError("the blob has an exponent that is not a number")
        sign = unpack(bytes_tensor(sign_bytes, torch.uint8, device), n, 1)
        value = (exponent << 23).view(torch.float32)
        return torch.where(sign > 0, -value, value)


class Sign(Codec):
    """One bit, and one scale: mean|x| (least error; EF-signSGD, Karimireddy et al., ICML 2019), rms (keeps the norm, as
    1-bit Adam does) or two (the mean of each side; 1-bit SGD, Seide et al., 2014). sign(0) is +1."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.scale = spec.word("scale")

    def write(self, x: torch.Tensor, key: Key) -> list[Buffer]:
        negative = x < 0
        bits = pack((~negative).to(torch.uint8), 1)
        if self.scale == "two":
            below = torch.where(negative, -x, 0.0).sum(dtype=torch.float64) / negative.sum().clamp(min=1)
            above = torch.where(negative, 0.0, x).sum(dtype=torch.float64) / (~negative).sum().clamp(min=1)
            scale = struct.pack("<ff", float(below), float(above))
        elif self.scale == "rms":
            length = norm(x.view(1, -1), "l2").double() / x.numel() ** 0.5
            scale = struct.pack("<f", float(length))
        else:
            scale = struct.pack("<f", float(x.abs().sum(dtype=torch.float64) / x.numel()))
        return [scale, tensor_bytes(bits)]

    def read(self, reader: Reader, header: Header, device: torch.device) -> torch.Tensor:
        n = header.elements
        below = reader.float32()
        above = reader.float32() if self.scale == "two" else below
        bits = unpack(bytes_tensor(reader.take(packed_size(n, 1)), torch.uint8, device), n, 1)
        return torch.where(bits > 0, torch.tensor(above, device=device), torch.tensor(-below, device=device))
