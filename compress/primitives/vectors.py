"""The test vectors of all measurements, by name; the same on every machine."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import CodecError

DISTRIBUTIONS = ("normal", "student3", "lognormal", "hetero")


def vector(distribution: str, size: int, seed: int | None = None) -> torch.Tensor:
    """fp32 ``[size]``. Without a seed, the vector that published values in docs/codecs.md are for."""
    if distribution not in DISTRIBUTIONS:
        raise CodecError(f"there is no distribution {distribution!r} (distributions: {', '.join(DISTRIBUTIONS)})")
    number = DISTRIBUTIONS.index(distribution)
    random = np.random.default_rng({0: 0, 1: 2, 2: 1, 3: 3}[number] if seed is None else [number, seed])
    if distribution == "normal":
        values = random.standard_normal(size)
    elif distribution == "student3":
        values = random.standard_t(3, size)
    elif distribution == "lognormal":
        values = random.lognormal(0, 1, size)
    else:
        spread = np.repeat(np.exp(1.5 * random.standard_normal(-(-size // 256))), 256)[:size]
        values = spread * random.standard_normal(size)
    return torch.from_numpy(values.astype(np.float32))
