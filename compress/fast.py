"""Compiled loops for the CPU (the optional extra ``fast``: numba). Same results, bit for bit, without it."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from . import scales

LEAST = 1 << 17
"""Shorter vectors are not worth importing numba and compiling for: a second or more, once for each process."""


def worth(count: int) -> bool:
    """Whether the compiled loops should take a vector of ``count`` elements."""
    return count >= LEAST and available()


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether numba is there and not switched off (FARFLUNG_FAST=0)."""
    if os.environ.get("FARFLUNG_FAST") == "0":
        return False
    try:
        import numba
    except ImportError:
        return False
    return bool(numba)


@lru_cache(maxsize=1)
def _loops() -> Any:
    from . import loops

    return loops


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Unnormalised Walsh-Hadamard transform of each row: a new tensor."""
    out = x.contiguous().clone()
    _loops().hadamard(out.numpy())
    return out


def rice(positions: np.ndarray, low: int, unary_bits: int) -> tuple[bytes, bytes]:
    """(unary bytes, remainder bytes) of the gaps before the positions; low is 0, 1, 2 or 4."""
    unary, rest = np.zeros(-(-unary_bits // 8) + 1, np.uint8), np.zeros(-(-len(positions) * low // 8), np.uint8)
    _loops().rice(positions, low, unary, rest)
    return unary[: -(-unary_bits // 8)].tobytes(), rest.tobytes()


def quantize4(x: torch.Tensor, group: int, up: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(int16 step codes, packed nearest 4-bit levels) of a flat fp32 vector."""
    count = x.numel()
    whole = count // group
    groups = -(-count // group)
    codes, packed = torch.empty(groups, dtype=torch.int16), torch.empty(groups * group // 2, dtype=torch.uint8)
    rows = x[: whole * group].view(whole, group)
    parts = [(rows.numpy(), 0, whole)]
    if whole < groups:
        tail = torch.nn.functional.pad(x[whole * group :], (0, groups * group - count)).view(1, group)
        parts.append((tail.numpy(), whole, groups))
    for part, first, last in parts:
        _loops().steps_of(part, 7, up, codes[first:last].numpy())
        units = scales.to_scales(codes[first:last]).numpy()
        _loops().quantize4(part, units, packed[first * group // 2 : last * group // 2].numpy())
    if count % 2:  # the half of a byte that nobody reads is 0, as in ``pack``
        packed[count // 2] &= 0x0F
    return codes, packed[: -(-count // 2)]


def add_groups4(out: np.ndarray, levels: Any, units: np.ndarray, group: int, weight: float) -> None:
    """4-bit groups, decoded and added."""
    _loops().add_groups4(out, np.frombuffer(levels, np.uint8), units, group, np.float32(weight))


def unpack4(out: np.ndarray, levels: Any, units: np.ndarray, group: int) -> None:
    """4-bit groups, decoded."""
    _loops().unpack4(out, np.frombuffer(levels, np.uint8), units, group)


def nearest_levels(rows: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """uint8 index of the nearest level, given the rising edges between levels."""
    out = torch.empty(rows.shape, dtype=torch.uint8)
    _loops().nearest_levels(rows.contiguous().numpy(), edges.numpy(), out.numpy())
    return out


def eden_rows(
    rows: torch.Tensor, words: torch.Tensor, levels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(uint8 codes, fp32 factors) of unbiased EDEN for fp32 ``[rows, 2^k]``; None where the slow way is needed."""
    codes, factors = torch.empty(rows.shape, dtype=torch.uint8), torch.empty(len(rows))
    edges = ((levels[1:] + levels[:-1]) / 2).numpy()
    done = _loops().eden_rows(
        rows.contiguous().numpy(), words.numpy(), levels.numpy(), edges, codes.numpy(), factors.numpy()
    )
    return (codes, factors) if done else None


def eden_back(codes: torch.Tensor, words: torch.Tensor, levels: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """What uint8 codes ``[rows, 2^k]`` decode to, fp32."""
    out = torch.empty(codes.shape)
    _loops().eden_back(codes.numpy(), words.numpy(), levels.numpy(), factors.numpy(), out.numpy())
    return out
