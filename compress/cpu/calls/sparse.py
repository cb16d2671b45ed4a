"""Calls of the compiled loops (see ``dispatch``) for sparse codecs and their masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...primitives import selection
from ..dispatch import _loops


def largest_offered(
    x: np.ndarray, runs: np.ndarray, run: int, offered: int, k: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """(int32 places among the ``offered``, fp32 values) of the k largest magnitudes of the runs, as those that
    ``selection.largest`` finds. None: the torch code must be used: a sample that misleads, or a value of ``x`` that is
    not finite."""
    loops, bits = _loops("sparse"), x.view(np.int32)
    seen = np.empty(min(len(runs), 1 << 12), np.int32)
    loops.sample(bits, runs, run, seen)
    places = selection.bounds(seen, k / offered)
    if places is None or offered >= 1 << 31:
        return None
    seen.partition(places[0])
    least = int(seen[places[0]])
    # One allocation: glibc would return some of several to the kernel each time, and their pages be zeroed again.
    room = min(offered, int(1.1 * offered * (1 - places[0] / len(seen)))) + run + 1
    where, values = np.empty((2, room), np.int32)
    found = loops.near(bits, runs, run, np.int32(least), where, values)
    if found < k:
        return None
    where, values = where[:found], values[:found]
    exact = loops.threshold(values, least, k)
    count = loops.keep(where, values, np.int32(exact))
    where, values = where[:count], values[:count]
    if count > k:
        stays = selection.without_surplus(selection.magnitudes(values), exact, k)
        where, values = where[stays], values[stays]
    return where, values.view(np.float32)


def gap_sum(positions: np.ndarray, low: int) -> int:
    """The sum of gap >> low over the gaps before rising positions."""
    return int(_loops("sparse").gap_sum(positions, low))


def rice(positions: np.ndarray, low: int, unary_bits: int) -> tuple[bytes, bytes]:
    """(unary bytes, remainder bytes) of the gaps before the positions; low is 0, 1, 2 or 4."""
    unary, rest = np.zeros(-(-unary_bits // 64), np.uint64), np.zeros(-(-len(positions) * low // 8), np.uint8)
    _loops("sparse").rice(positions, low, unary, rest)
    return unary.astype("<u8", copy=False).tobytes()[: -(-unary_bits // 8)], rest.tobytes()


def rice_back(unary: Any, rest: Any, low: int, unary_bits: int, count: int, size: int) -> np.ndarray | None:
    """The ``count`` positions below ``size`` that Rice codes encode; None if the codes are not valid."""
    padded = np.zeros(-(-len(unary) // 8), "<u8")
    padded.view(np.uint8)[: len(unary)] = np.frombuffer(unary, np.uint8)
    positions = np.empty(count, np.int32 if size < 1 << 31 else np.int64)
    found = _loops("sparse").rice_back(padded, np.frombuffer(rest, np.uint8), low, positions)
    good = found[0] == count and (count == 0 or (found[1] == unary_bits - 1 and found[2] < size))
    return positions if good else None


def add_sparse(
    out: np.ndarray, places: np.ndarray, runs: np.ndarray, run: int, levels: Any, units: np.ndarray, bucket: int,
    weight: float,
) -> None:  # fmt: skip
    """Decode Cocktail's 4-bit linear values, and add them at ``places``, indices among the offered elements."""
    packed = np.frombuffer(levels, np.uint8)
    _loops("sparse").add_sparse(out, places, runs, run, packed, units, bucket, np.float32(weight))
