"""AQ-SGD's quantisation: steps that are powers of two, so that products are exact."""

from __future__ import annotations

import torch

from ..blobs.wire import Buffer, Reader
from ..codec import bytes_tensor, tensor_bytes
from ..cpu import dispatch as fast
from ..cpu.calls import blocks
from ..cpu.calls import tables as tabled
from ..primitives.packing import pack, packed_size, unpack
from ..primitives.scales import LARGEST, power_of_two
from ..quantizers.looped import Put

_ZERO = -128


def quantize(x: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat fp32 -> (int8 exponents ``[groups]``, uint8 codes ``[n]``): nearest of q * 2^e, |q| <= 2^(bits-1) - 1."""
    top = (1 << (bits - 1)) - 1
    rows = torch.nn.functional.pad(x, (0, -x.numel() % group)).view(-1, group)
    largest = rows.abs().amax(1)
    mantissa, exponent = torch.frexp(largest / top)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-126, 127)
    step = torch.ldexp(torch.ones_like(largest), exponent)
    level = (rows / step[:, None]).round_().clamp_(-top, top) + float(top + 1)
    exponent = torch.where(largest > 0, exponent, torch.full_like(exponent, _ZERO))
    return exponent.to(torch.int8), level.view(-1)[: x.numel()].to(torch.uint8)


def dequantize(exponents: torch.Tensor, codes: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """The fp32 values: exact products with powers of two, clamped to fp32's range."""
    n = codes.numel()
    level = torch.nn.functional.pad(codes, (0, -n % group)).view(-1, group).to(torch.float32) - float(1 << (bits - 1))
    exponent = exponents.to(torch.int32)[:, None]
    zero = torch.zeros((), device=codes.device)
    return torch.where(exponent == _ZERO, zero, torch.ldexp(level, exponent).clamp(-LARGEST, LARGEST)).view(-1)[:n]


def body(x: torch.Tensor, bits: int, group: int) -> tuple[bytes, torch.Tensor]:
    if x.device.type == "cpu" and fast.worth(x.numel()):
        exponents, packed, decoded = blocks.shifts(x, group, bits)
        return b"".join([tensor_bytes(exponents), tensor_bytes(packed)]), decoded
    exponents, codes = quantize(x, bits, group)
    data = b"".join([tensor_bytes(exponents), tensor_bytes(pack(codes, bits))])
    return data, dequantize(exponents, codes, bits, group)


def read_body(reader: Reader, count: int, bits: int, group: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu" and fast.worth(count):
        out = fast.room(count)
        opened_body(reader, count, bits, group)(out, None)
        return out
    exponents, packed = reader.take(-(-count // group)), reader.take(packed_size(count, bits))
    codes = unpack(bytes_tensor(packed, torch.uint8, device), count, bits)
    return dequantize(bytes_tensor(exponents, torch.int8, device), codes, bits, group)


def opened_body(reader: Reader, count: int, bits: int, group: int) -> Put:
    """As ``Looped.opened``."""
    exponents, packed = reader.take(-(-count // group)), reader.take(packed_size(count, bits))
    table = _table(exponents, bits)
    return lambda out, weight: tabled.add_table(out, packed, *table, group, bits, weight)


def _table(exponents: Buffer, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(fp32 values of all codes, fp32 unit of each group)."""
    exponent = bytes_tensor(exponents, torch.int8).to(torch.int32)
    units = torch.where(exponent == _ZERO, torch.zeros(()), power_of_two(exponent.clamp(min=-127)))
    return torch.arange(1 << bits, dtype=torch.float32) - float(1 << (bits - 1)), units
