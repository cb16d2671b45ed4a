"""Calls of the compiled loops (see ``dispatch``) for codecs that encode each element alone, with its group's unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...primitives.key import Key
from ..dispatch import _factor, _key, _loops, packed_bytes, room

EQUAL, POWERS, TERNARY, NATURAL, EXPONENTS, WHOLE = range(6)
"""Kinds of random rounding: to one of equal levels, to a power of two relative to the largest, to -1, 0 or 1, to an
fp32 exponent, to an exponent relative to the largest, to an integer."""


def dithered(
    x: torch.Tensor, group: int, units: torch.Tensor, kind: int, bits: int, key: Key, number: float = 0.0
) -> torch.Tensor:
    """Packed codes of a flat fp32 vector, rounded at random. units: fp32, the divisor of each ``group`` elements.
    number: the offset of EQUAL levels, the range of EXPONENTS, or the factor of WHOLE."""
    count = x.numel()
    size = -(-count // 5) if kind == TERNARY else packed_bytes(count, bits)
    packed = room(size, torch.uint8)
    numbers = kind, float(number), bits, *_key(key)
    _loops("dithered").dithered(x.numpy(), group, units.numpy(), *numbers, packed.numpy())
    return packed


def add_natural(out: torch.Tensor, packed: Any, weight: float | None) -> None:
    """Exponents and signs, written to ``out``, or with a weight added to it."""
    data = np.frombuffer(packed, np.uint8)
    _loops("dithered").natural_back(data, _factor(weight), weight is not None, out.numpy())


def add_ternary(out: torch.Tensor, packed: Any, values: torch.Tensor, weight: float | None) -> None:
    """Bytes of five digits, whose values are fp32 ``values`` ``[243, 5]``, written to ``out``, or with a weight added
    to it."""
    table = torch.nn.functional.pad(values, (0, 3)).numpy()
    data = np.frombuffer(packed, np.uint8)
    _loops("dithered").ternary_back(data, table, _factor(weight), weight is not None, out.numpy())


def affine(x: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(fp32 scales, uint8 zero points, uint8 codes) of each ``size`` of a flat fp32 vector."""
    rows = -(-x.numel() // size)
    scales, zeros, codes = (
        torch.empty(rows),
        torch.empty(rows, dtype=torch.uint8),
        room(x.numel(), torch.uint8),
    )
    _loops("sums").affine(x.numpy(), size, scales.numpy(), zeros.numpy(), codes.numpy())
    return scales, zeros, codes


def add_affine(
    out: torch.Tensor, packed: Any, size: int, scales: torch.Tensor, zeros: torch.Tensor, weight: float | None
) -> None:
    """The inverse of ``affine``, written to ``out``, or with a weight added to it."""
    numbers = np.frombuffer(packed, np.uint8), size, scales.numpy(), zeros.numpy()
    _loops("sums").affine_back(*numbers, _factor(weight), weight is not None, out.numpy())


def bfloats(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(bfloat16 of a flat fp32 vector, the largest of its int32 bits without their sign)."""
    out = np.empty(x.numel(), np.uint16)
    top = int(_loops("sums").bfloats(x.numpy().view(np.int32), out))
    return torch.from_numpy(out).view(torch.bfloat16), top


def signs(x: torch.Tensor) -> torch.Tensor:
    """Packed bits: 1 where a value is not below zero."""
    packed = torch.empty(-(-x.numel() // 8), dtype=torch.uint8)
    _loops("sums").signs(x.numpy(), packed.numpy())
    return packed
