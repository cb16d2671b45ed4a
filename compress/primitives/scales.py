"""Scales on the wire in 16 bits: the sign bit of a bfloat16 is always 0, so it becomes one more bit of the mantissa.

8 bits of exponent as in fp32 (nothing overflows or needs an epsilon), 9 significant bits. Rounded up where a value must
not exceed its scale (stochastic rounding), else to nearest.
"""

from __future__ import annotations

import torch

from ..errors import CodecError

LOW = 15
_MAX = (0x7F7FFFFF >> LOW) << LOW


def to_codes(scales: torch.Tensor, up: bool) -> torch.Tensor:
    """fp32 scales >= 0 -> int16 codes (their 16 bits are unsigned: exponent and 8 bits of mantissa)."""
    bits = scales.view(torch.int32)
    add = (1 << LOW) - 1 if up else 1 << (LOW - 1)
    return ((bits + add).clamp(max=_MAX) >> LOW).to(torch.int16)


def to_scales(codes: torch.Tensor) -> torch.Tensor:
    """The fp32 scales of int16 codes: exact."""
    return ((codes.to(torch.int32) & 0xFFFF) << LOW).view(torch.float32)


def check_codes(codes: torch.Tensor) -> None:
    """CodecError if a code from a stranger means infinity or NaN."""
    if codes.numel() and int((codes.to(torch.int32) & 0xFFFF).max()) > _MAX >> LOW:
        raise CodecError("the blob has a scale that is not finite")
