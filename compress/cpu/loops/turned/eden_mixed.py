"""EDEN's compiled loops for fractional numbers of bits: some elements have one bit more."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import jit
from ..packing import planes, planes_back
from .eden import factor_of, quantized, turned_back, turned_row


@jit
def encode_mixed(
    rows: Any, words: Any, levels: Any, edges: Any, cells: Any, more: Any, more_edges: Any, more_cells: Any, kind: int,
    bits: int, mixed: Any, packed: Any, extra: Any, at: Any, count: int, first: int, factors: Any,
) -> Any:  # fmt: skip
    """As ``eden.encode``; elements with a flag in ``mixed`` use the ``more`` levels. Their highest bits are written to
    ``extra`` from ``at`` on, one per byte. Returns the new ``at``; -1 where ``encode`` returns False. With 0 bits there
    is only the level 0."""
    size = rows.shape[1]
    turned, z = np.empty(size, np.float32), np.empty(size, np.float32)
    codes, chosen = np.empty(size, np.uint8), np.empty(size, np.int32)
    others, further = np.empty(size, np.uint8), np.empty(size, np.int32)
    scaled = (levels * np.float32(1048576.0)).astype(np.int32)
    scaled_more = (more * np.float32(1048576.0)).astype(np.int32)
    squared, squared_more = (levels * levels).astype(np.float64), (more * more).astype(np.float64)
    low = np.uint8((1 << bits) - 1)
    for r in range(rows.shape[0]):
        field, energy = turned_row(rows[r], words, r * size, turned)
        if field < 0:
            return -1
        flags = mixed[first + r * size : first + (r + 1) * size]
        if field == 0:
            z[:] = np.float32(0.0)
        else:
            spread = np.float32(np.sqrt(np.float64(energy) * 2.0**-46))
            for i in range(size):
                z[i] = turned[i] / spread
        if bits:
            quantized(z, edges, cells, scaled, codes, chosen)
        else:
            codes[:] = 0
            chosen[:] = 0
        quantized(z, more_edges, more_cells, scaled_more, others, further)
        product, bottom = np.int64(0), 0.0
        for i in range(size):
            chosen[i] = further[i] if flags[i] else chosen[i]
        if field == 0:
            factors[r] = 0.0
        else:
            for i in range(size):
                product += np.int64(chosen[i]) * np.int64(np.int32(turned[i] * np.float32(131072.0)))
            if kind == 1:
                for i in range(size):
                    bottom += squared_more[others[i]] if flags[i] else squared[codes[i]]
            factors[r] = factor_of(kind, field, energy, product, bottom, size)
        for i in range(size):
            extra[at] = others[i] >> bits
            at += np.int64(flags[i])
        if bits:
            for i in range(size):
                codes[i] = others[i] & low if flags[i] else codes[i]
            planes(codes, bits, packed, count, first + r * size)
    return at


@jit
def decode_mixed(
    packed: Any, extra: Any, at: Any, mixed: Any, words: Any, levels: Any, bits: int, count: int, first: int,
    factors: Any, weight: Any, adding: bool, out: Any,
) -> Any:  # fmt: skip
    """The inverse of ``encode_mixed``, as ``eden.decode``; levels: fp32 ``[512]``, from 256 on those of mixed elements.
    Returns the new ``at``."""
    size = out.shape[1]
    codes, turned = np.zeros(size, np.uint8), np.empty(size, np.float32)
    for r in range(out.shape[0]):
        flags = mixed[first + r * size : first + (r + 1) * size]
        if bits:
            planes_back(packed, bits, count, first + r * size, codes)
        for i in range(size):
            more = np.uint32(flags[i])
            place = np.uint32(codes[i]) | np.uint32(np.uint32(extra[at]) << np.uint32(bits)) * more
            turned[i] = levels[np.uint32(place | np.uint32(more << np.uint32(8)))]
            at += np.int64(more)
        turned_back(turned, words, r * size, factors[r], weight, adding, out[r])
    return at
