"""Robust averages: contributions far from a centre are clipped towards it before they are summed.

There are norm clipping to the median, and centred clipping (Karimireddy, He and Jaggi, "Learning from History for
Byzantine Robust Optimization", 2021): with the last round's result v as centre, a contribution c counts as
v + f (c - v), where f = min(1, tau * median distance / distance). Norm clipping has the centre 0. All members that
compute the sum get the same bits: distances are exact integer sums, which do not depend on the order of addition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

import torch
from torch import Tensor

from ....job.tables.robust import Robust

_BITS = 20
_PIECE = 1 << 22
"""The squares of so many 20-bit integers sum to less than 2^63."""


def exact_square(values: Tensor) -> float:
    """The squared Euclidean norm of fp32 values [n] up to a grid of 2^-20 of the largest one: the same bits on every
    device. NaN where a value is not finite."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    if not math.isfinite(largest):
        return math.nan
    exponent = max(math.frexp(largest)[1], -100)
    total = 0
    for start in range(0, values.numel(), _PIECE):
        whole = (values[start : start + _PIECE] * 2.0 ** (_BITS - exponent)).round().to(torch.int64)
        total += int((whole * whole).sum())
    return math.ldexp(total, 2 * (exponent - _BITS))


def factors_of(robust: Robust, distances: Sequence[float]) -> list[float]:
    """The clipping factor f of each contribution, an fp32 number in [0, 1]."""
    finite = [distance for distance in distances if not math.isnan(distance)]
    limit = robust.tau * median_low(finite) if finite else 0.0
    kept = [limit / distance if distance > limit else 1.0 for distance in distances]
    return [float(torch.tensor(one, dtype=torch.float32)) for one in kept]
