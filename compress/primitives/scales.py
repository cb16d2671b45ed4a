"""Scales on the wire in 16 bits: the sign bit of a bfloat16 is always 0, so it becomes one more bit of the mantissa.

There are 8 bits of exponent as in fp32 (no overflow, no epsilon needed) and 9 significant bits. A scale is rounded up
if values must not exceed it (stochastic rounding), else to nearest.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import torch

from ..errors import CodecError

LOW = 15
LARGEST = 3.4028234663852886e38
_MAX = (0x7F7FFFFF >> LOW) << LOW


@lru_cache(maxsize=64)
def most(top: int = 1) -> int:
    """The largest code whose scale times ``top`` is finite in fp32, so that no level up to ``top`` decodes to
    infinity."""
    code = _MAX >> LOW
    while struct.unpack("<f", struct.pack("<I", code << LOW))[0] * top > LARGEST:
        code -= 1
    return code


def most_full(top: int) -> float:
    """A step in fp32 (some units in the last place below the largest) whose product with ``top`` is finite."""
    return LARGEST / top * (1 - 2.0**-20)


def limit(top: int, full: bool) -> int:
    """The limit with which a compiled loop compares steps: ``most(top)``, or for fp32 steps (``full``) the bits of
    ``most_full(top)``."""
    bits: int = struct.unpack("<i", struct.pack("<f", most_full(top)))[0]
    return bits if full else most(top)


def divided(x: torch.Tensor, number: float) -> torch.Tensor:
    """x / number, rounded once on every device. On CUDA torch multiplies by the rounded reciprocal of a divisor that is
    a Python number."""
    return x / torch.full((), number, dtype=x.dtype, device=x.device)


def to_codes(scales: torch.Tensor, up: bool, top: int = 1) -> torch.Tensor:
    """fp32 scales >= 0 -> int16 codes (their 16 bits are unsigned: exponent and 8 bits of mantissa), at most
    ``most(top)``."""
    bits = scales.view(torch.int32)
    add = (1 << LOW) - 1 if up else 1 << (LOW - 1)
    return ((bits + add).clamp(max=_MAX) >> LOW).clamp(max=most(top)).to(torch.int16)


def to_scales(codes: torch.Tensor) -> torch.Tensor:
    """The fp32 scales of int16 codes: exact."""
    return ((codes.to(torch.int32) & 0xFFFF) << LOW).view(torch.float32)


def check_codes(codes: torch.Tensor, top: int = 1) -> None:
    """CodecError if the scale of a received code, or that times ``top``, is infinity or NaN."""
    if codes.numel() and int((codes.to(torch.int32) & 0xFFFF).max()) > most(top):
        raise CodecError("the blob has a scale that is not finite")


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """fp32 2^exponent of int32 exponents from -127, whose power is denormal, to 127."""
    bits = torch.where(exponent == -127, 1 << 22, (exponent + 127) << 23)
    return bits.to(torch.int32).view(torch.float32)


def scaled(rows: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """fp32 ``[rows, n]`` times 2^exponent of int32 exponents ``[rows]`` from -252 to 252, in two exact steps: as
    torch.ldexp, which takes three times as long."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    return (rows * power_of_two(half)[:, None]).mul_(power_of_two(exponent - half)[:, None])
