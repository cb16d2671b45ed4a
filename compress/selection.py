"""The k largest magnitudes, exactly k, ties to the lowest index: the same answer on every machine."""

from __future__ import annotations

import numpy as np


def magnitudes(values: np.ndarray) -> np.ndarray:
    """int32 that order like |values| (fp32, finite): the bits without the sign."""
    out: np.ndarray = values.view(np.int32) & np.int32(0x7FFFFFFF)
    return out


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Indices (int64, rising) of the k largest |values| of a finite fp32 vector."""
    n = len(values)
    if k >= n:
        return np.arange(n)
    order = magnitudes(values)
    threshold = np.partition(order, n - k)[n - k]
    keep = np.flatnonzero(order >= threshold)
    surplus = len(keep) - k
    if surplus:
        ties = np.flatnonzero(order[keep] == threshold)
        keep = np.delete(keep, ties[len(ties) - surplus :])
    return keep
