"""Short floats with a scale per block: ``mxfp8``, ``mxfp6``, ``mxfp4`` (OCP Microscaling 1.0), ``nvfp4``, ``nf4``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..blobs.pieces import Piece
from ..blobs.wire import Header, Reader
from ..codec import bytes_tensor, piece
from ..cpu import dispatch as fast
from ..cpu.calls import tables as tabled
from ..errors import CodecError
from ..primitives import philox, scales
from ..primitives.key import Key
from ..primitives.packing import pack, packed_size
from ..specs.spec import Spec
from .tables import Parts, Tabled, blocks_of, largest_of

# fmt: off
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)
# fmt: on
"""Quantiles of the normal distribution (QLoRA, Dettmers et al., 2023), zero included."""


@dataclass(frozen=True)
class Minifloat:
    """A short float: bits in all, mantissa bits, smallest exponent of a normal number, code of the largest finite
    value."""

    bits: int
    mantissa: int
    least: int
    largest: int

    def magnitude(self, code: int) -> float:
        field, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        if field == 0:
            return float(fraction * 2.0 ** (self.least - self.mantissa))
        return float(((1 << self.mantissa) + fraction) * 2.0 ** (self.least + field - 1 - self.mantissa))

    @property
    def top(self) -> float:
        return self.magnitude(self.largest)

    @property
    def exponent(self) -> int:
        """floor(log2(top)), emax in the OCP specification."""
        return self.least + (self.largest >> self.mantissa) - 1

    def round(self, x: torch.Tensor, u: torch.Tensor | float | None) -> torch.Tensor:
        """int32 codes of |x|: to nearest even, or up with probability (u uniform in [0, 1)); saturates."""
        _, exponent = torch.frexp(x)
        exponent = torch.where(x != 0, exponent - 1, self.least).clamp(min=self.least, max=self.least + 40)
        units = torch.ldexp(x.abs(), self.mantissa - exponent)
        units = units.round() if u is None else (units + u).floor()
        return (((exponent - self.least) << self.mantissa) + units.to(torch.int32)).clamp(max=self.largest)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The format's numbers, for the compiled loops."""
        return self.bits, self.mantissa, self.least, self.largest

    def table(self, device: torch.device) -> torch.Tensor:
        """The values of all codes, sign bit included, fp32."""
        return _table(self).to(device)


@lru_cache(maxsize=16)
def _table(form: Minifloat) -> torch.Tensor:
    half = torch.tensor([form.magnitude(min(code, form.largest)) for code in range(1 << (form.bits - 1))])
    return torch.cat([half, -half])


FORMS = {
    "e4m3": Minifloat(8, 3, -6, 126),
    "e5m2": Minifloat(8, 2, -14, 123),
    "e3m2": Minifloat(6, 2, -2, 31),
    "e2m3": Minifloat(6, 3, 0, 31),
    "e2m1": Minifloat(4, 1, 0, 7),
}
E4M3 = FORMS["e4m3"]


class Microscaling(Tabled):
    """Blocks of 32 short floats and one power-of-two scale.

    scale=floor is OCP's: values between the format's largest and the next power of two saturate, so stochastic rounding
    is only unbiased with scale=ceil, which is the default there.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        name = spec.word("format") if spec.name != "mxfp4" else "e2m1"
        self.form = FORMS[name]
        self.stochastic = spec.word("rounding") == "stochastic"
        scale = spec.word("scale")
        self.ceil = scale == "ceil" or (scale == "auto" and self.stochastic)

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        form, largest = self.form, largest_of(x, 32)
        if self.ceil:
            mantissa, exponent = torch.frexp(scales.divided(largest, form.top))
            exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
        else:
            exponent = torch.frexp(largest)[1] - 1 - form.exponent
        exponent = torch.where(largest > 0, exponent, -127).clamp(-127, 127)
        fields = piece((exponent + 127).to(torch.uint8))
        if x.device.type == "cpu" and fast.worth(x.numel()):
            factors = scales.power_of_two(-(exponent // 2)), scales.power_of_two(-(exponent - exponent // 2))
            packed = tabled.minifloat(x, 32, factors, form.shape, key.dither if self.stochastic else None)
            return [fields, piece(packed)]
        rows = blocks_of(x, 32)
        scaled = torch.ldexp(torch.ldexp(rows, -(exponent // 2)[:, None]), -(exponent - exponent // 2)[:, None])
        u = philox.uniform(rows.numel(), key.dither, 0, 0, x.device).view_as(rows) if self.stochastic else None
        codes = form.round(scaled, u) | (scaled < 0).to(torch.int32) << (form.bits - 1)
        flat = codes.view(-1)[: x.numel()].to(torch.uint8)
        return [fields, piece(pack(flat, form.bits))]

    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        n, bits = header.elements, self.form.bits
        scale_bytes, packed = reader.take(-(-n // 32)), reader.take(packed_size(n, bits))
        field = bytes_tensor(scale_bytes, torch.uint8, device)
        if int(field.max()) > 254:
            raise CodecError("the blob has a block scale that is not a number")
        return Parts(packed, self.form.table(device), scales.power_of_two(field.to(torch.int32) - 127), 32, bits)


class NvFp4(Tabled):
    """Blocks of 16 e2m1 values with an e4m3 scale, relative to one fp32 scale of the tensor.

    With stochastic rounding the block scale is rounded up: rounded to nearest it can clip, which is a bias.
    """

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.stochastic = spec.word("rounding") == "stochastic"
        self.up = self.stochastic and spec.word("scale") == "up"

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        form, largest = FORMS["e2m1"], largest_of(x, 16)
        tensor_scale = scales.divided(largest.max(), E4M3.top * 6.0)
        safe = torch.where(tensor_scale > 0, tensor_scale, torch.ones_like(tensor_scale))
        relative = scales.divided(largest, 6.0) / safe
        scale = E4M3.round(relative, 1.0 - 2.0**-22 if self.up else None)
        unit = E4M3.table(x.device)[scale.to(torch.int64)] * safe
        head: list[Piece] = [piece(tensor_scale.view(1)), piece(scale.to(torch.uint8))]
        if x.device.type == "cpu" and fast.worth(x.numel()):
            packed = tabled.minifloat(x, 16, (unit,), form.shape, key.dither if self.stochastic else None)
            return [*head, piece(packed)]
        rows = blocks_of(x, 16)
        ratio = rows / torch.where(unit > 0, unit, torch.ones_like(unit))[:, None]
        ratio = torch.where(unit[:, None] > 0, ratio, torch.zeros_like(ratio))
        u = philox.uniform(rows.numel(), key.dither, 0, 0, x.device).view_as(rows) if self.stochastic else None
        codes = (form.round(ratio, u) | (ratio < 0).to(torch.int32) << 3).view(-1)[: x.numel()].to(torch.uint8)
        return [*head, piece(pack(codes, 4))]

    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        n = header.elements
        tensor_scale = reader.float32()
        scale_bytes, packed = reader.take(-(-n // 16)), reader.take(packed_size(n, 4))
        scale = bytes_tensor(scale_bytes, torch.uint8, device).to(torch.int64).clamp(max=E4M3.largest)
        unit = E4M3.table(device)[scale] * torch.tensor(tensor_scale, device=device)
        return Parts(packed, FORMS["e2m1"].table(device), unit, 16, 4)


class Nf4(Tabled):
    """The nearest of 16 quantiles of the normal distribution, scaled by the largest of each block."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.block = spec.number("block")

    def write(self, x: torch.Tensor, key: Key) -> Sequence[Piece]:
        code = scales.to_codes(largest_of(x, self.block), up=False)
        unit = scales.to_scales(code)
        table = torch.tensor(NF4, device=x.device)
        if x.device.type == "cpu" and fast.worth(x.numel()):
            packed = tabled.between(x, self.block, unit, (table[1:] + table[:-1]) / 2, 4)
            return [piece(code), piece(packed)]
        rows = blocks_of(x, self.block)
        ratio = rows / torch.where(unit > 0, unit, torch.ones_like(unit))[:, None]
        codes = torch.bucketize(ratio, (table[1:] + table[:-1]) / 2).view(-1)[: x.numel()].to(torch.uint8)
        return [piece(code), piece(pack(codes, 4))]

    def parts(self, reader: Reader, header: Header, device: torch.device) -> Parts:
        n = header.elements
        scale_bytes, packed = reader.take(2 * -(-n // self.block)), reader.take(packed_size(n, 4))
        code = bytes_tensor(scale_bytes, torch.int16, device)
        scales.check_codes(code)
        return Parts(packed, torch.tensor(NF4, device=device), scales.to_scales(code), self.block, 4)
