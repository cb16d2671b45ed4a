"""Calls of the compiled loops (see ``dispatch``) for plain values, groups with a step, and tables of levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...primitives import scales
from ...primitives.key import Key
from ..dispatch import _factor, _key, _loops, packed_bytes, room


def quantize(
    x: torch.Tensor, group: int, bits: int, full: bool, stochastic: bool, key: Key
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(steps: fp32 where ``full``, else int16 codes; packed levels of 2, 4 or 8 bits) of a flat fp32 vector, as
    ``Group.quantize``. None if a value is not finite."""
    steps = torch.empty(-(-x.numel() // group), dtype=torch.int32)
    packed = room(-(-x.numel() * bits // 8), torch.uint8)
    loop, limit = _loops("groups").quantize, scales.limit((1 << (bits - 1)) - 1, full)
    if not loop(x.numpy(), group, bits, full, np.int64(limit), stochastic, *_key(key), steps.numpy(), packed.numpy()):
        return None
    return steps.view(torch.float32) if full else (steps >> scales.LOW).to(torch.int16), packed


def add_groups(
    out: torch.Tensor, levels: Any, units: torch.Tensor, group: int, bits: int, weight: float | None
) -> None:
    """Groups of 2, 4 or 8 bits, decoded into ``out``, or added to it with a weight."""
    packed, adding = np.frombuffer(levels, np.uint8), weight is not None
    _loops("groups").add(out.numpy(), packed, units.numpy(), group, bits, _factor(weight), adding)


def group_squares(levels: Any, units: torch.Tensor, group: int, bits: int, count: int) -> float:
    """The sum of the squares of groups of 2, 4 or 8 bits."""
    return float(_loops("groups").squares(np.frombuffer(levels, np.uint8), units.numpy(), group, bits, count))


KINDS = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 8}
"""The dtypes of plain values that the loops support."""


def add_floats(out: torch.Tensor, data: Any, dtype: torch.dtype, weight: float | None) -> None:
    """Plain values from their bytes, at any address, written to ``out``, or with a weight added to it."""
    raw, adding = np.frombuffer(data, np.uint8), weight is not None
    _loops("casts").add(out.numpy(), raw, KINDS[dtype], _factor(weight), adding)


def float_squares(data: Any, count: int, dtype: torch.dtype) -> float:
    """The sum of the squares of plain values."""
    return float(_loops("casts").squares(np.frombuffer(data, np.uint8), count, KINDS[dtype]))


def add_table(
    out: torch.Tensor, packed: Any, table: torch.Tensor, units: torch.Tensor, group: int, bits: int,
    weight: float | None,
) -> None:  # fmt: skip
    """table[code] * unit of the group, clamped to fp32's range, written to ``out``, or with a weight added to it."""
    numbers = np.frombuffer(packed, np.uint8), table.numpy(), units.numpy(), group, bits
    _loops("tables").add(out.numpy(), *numbers, _factor(weight), weight is not None)


def minifloat(
    x: torch.Tensor, group: int, scale: tuple[torch.Tensor, ...], form: tuple[int, int, int, int], key: Key | None
) -> torch.Tensor:
    """Packed codes of short floats. scale: (each group's divisor) or (two factors of each group). form: (bits, mantissa
    bits, smallest exponent, largest code). key: for random rounding; None: to nearest."""
    bits, mantissa, least, most = form
    packed = room(packed_bytes(x.numel(), bits), torch.uint8)
    first, second = scale[0].numpy(), scale[-1].numpy()
    randomness = key is not None, *_key(key or Key())
    numbers = group, len(scale) == 1, first, second, mantissa, least, most
    _loops("tables").minifloat(x.numpy(), *numbers, *randomness, bits, packed.numpy())
    return packed


def between(x: torch.Tensor, group: int, units: torch.Tensor, edges: torch.Tensor, bits: int) -> torch.Tensor:
    """Packed codes: how many of the rising edges are below x / unit."""
    packed = room(packed_bytes(x.numel(), bits), torch.uint8)
    _loops("tables").edges(x.numpy(), group, units.numpy(), edges.numpy(), bits, packed.numpy())
    return packed
