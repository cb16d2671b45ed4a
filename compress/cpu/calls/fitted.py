"""Calls of the compiled loops (see ``dispatch``) for ``avq`` and ``docofl``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...primitives.key import Key
from ..dispatch import _factor, _key, _loops, packed_bytes, room


def layers(
    values: np.ndarray, counts: np.ndarray, first: np.ndarray, second: np.ndarray, levels: int
) -> list[np.ndarray]:
    """For each of ``levels`` - 2 layers, the best level before each possible last one; for
    ``adaptive.optimal_levels``."""
    choices = np.empty((levels - 2, len(values)), np.int64)
    _loops("fitted").layers(values, counts.astype(np.float64), first, second, choices)
    return list(choices)


def rounded(y: torch.Tensor, levels: torch.Tensor, bits: int, key: Key) -> torch.Tensor:
    """Packed codes of a flat vector: the level at or below each value, or randomly the next one (unbiased)."""
    packed = room(packed_bytes(y.numel(), bits), torch.uint8)
    _loops("fitted").rounded(y.numpy(), levels.numpy(), bits, *_key(key), packed.numpy())
    return packed


def levels_of(x: torch.Tensor, low: float, span: float, last: int, key: Key) -> torch.Tensor:
    """Levels 0 to ``last`` of a flat vector with values between low and low + span, rounded at random: uint8, or int32
    if there are more than 256 levels."""
    codes = room(x.numel(), torch.uint8 if last < 256 else torch.int32)
    _loops("fitted").levels_of(x.numpy(), low, span, last, *_key(key), codes.numpy())
    return codes


def add_levels(
    out: torch.Tensor, upper: Any, lower: torch.Tensor, plain: int, table: torch.Tensor, weight: float | None
) -> None:
    """Entries of a table whose upper bits (bytes) and ``plain`` lower ones (uint8) are given, written to ``out`` or
    added to it with a weight."""
    numbers = np.frombuffer(upper, np.uint8), lower.numpy(), plain, table.numpy()
    _loops("fitted").levels_back(*numbers, _factor(weight), weight is not None, out.numpy())
