"""The k largest magnitudes, exactly k, ties to the lowest index: the same answer on every machine."""

from __future__ import annotations

import numpy as np

_SAMPLED = 1 << 16


def magnitudes(values: np.ndarray) -> np.ndarray:
    """int32 that order like |values| (fp32, finite): the bits without the sign."""
    out: np.ndarray = values.view(np.int32) & np.int32(0x7FFFFFFF)
    return out


def bounds(sample: np.ndarray, share: float) -> tuple[int, int] | None:
    """Two indices in a sorted sample between which the threshold of the largest fraction ``share`` lies, almost surely;
    None if the sample is too small."""
    place, spread = (1 - share) * len(sample), 6 * (share * (1 - share) * len(sample)) ** 0.5 + 4
    low, high = int(place - spread), int(place + spread)
    return None if low < 0 else (low, high)


def threshold(near: np.ndarray, high: int | None, k: int) -> int | None:
    """The k-th largest value, from the values ``near`` it or above; None if it is not below ``high``."""
    inside = near if high is None else near[near < high]
    missing = k - (len(near) - len(inside))
    if not 1 <= missing <= len(inside):
        return None
    return int(np.partition(inside, len(inside) - missing)[len(inside) - missing])


def without_surplus(order: np.ndarray, least: int, k: int) -> np.ndarray:
    """A mask of the k elements of ``order`` to keep: those of at least ``least`` (there are at least k), ties by the
    lowest index."""
    keep: np.ndarray = order >= least
    surplus = int(keep.sum()) - k
    if surplus:
        ties = np.flatnonzero(order == least)
        keep[ties[len(ties) - surplus :]] = False
    return keep


def largest(values: np.ndarray, k: int) -> np.ndarray:
    """Indices (int64, rising) of the k largest |values| of a finite fp32 vector."""
    n = len(values)
    if k >= n:
        return np.arange(n)
    order = magnitudes(values)
    if n > _SAMPLED:
        sample = order[:: n >> 15].copy()
        places = bounds(sample, k / n)
        if places is not None:
            low, high = places
            sample.partition([low, min(high, len(sample) - 1)])
            index = np.flatnonzero(order >= sample[low])
            near = order[index]
            least = threshold(near, sample[high] if high < len(sample) else None, k)
            if least is not None:
                return np.asarray(index[without_surplus(near, least, k)])
    least = int(np.partition(order, n - k)[n - k])
    return np.flatnonzero(without_surplus(order, least, k))
