"""Compiled loops for the CPU (the optional extra ``fast``: numba). Same results, bit for bit, without it."""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..primitives.key import Key

LEAST, FEW = 1 << 17, 1 << 10
"""For shorter vectors the torch code is used: importing numba and compiling take a second or more once per process, and
later the call itself costs too much."""


def worth(count: int) -> bool:
    """Whether the compiled loops should take a vector of ``count`` elements."""
    return count >= LEAST and available()


def worth_few(count: int) -> bool:
    """Whether the compiled loops should take the ``count`` elements that a sparse codec keeps; fewer are enough if the
    loops have been loaded already."""
    return ((count >= FEW and _loops.cache_info().currsize > 0) or count >= LEAST) and available()


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether numba is installed and not switched off (FARFLUNG_FAST=0)."""
    if os.environ.get("FARFLUNG_FAST") == "0":
        return False
    try:
        import numba
    except ImportError:
        return False
    return bool(numba)


@lru_cache(maxsize=32)
def _loops(what: str) -> Any:
    return importlib.import_module(f".loops.{what}", __package__)


_NUMPY = {torch.float32: np.float32, torch.uint8: np.uint8, torch.int32: np.int32}


def room(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An uninitialised tensor ``[count]``. numpy asks the kernel for huge pages; the first touch of a small page takes
    as long as copying it."""
    return torch.from_numpy(np.empty(count, _NUMPY[dtype]))


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Unnormalised Walsh-Hadamard transform of each row: a new tensor."""
    out = x.contiguous().clone()
    _loops("base").hadamard(out.numpy())
    return out


def _factor(weight: float | None) -> np.float32:
    return np.float32(1.0 if weight is None else weight)


def _key(key: Key) -> tuple[np.uint64, int]:
    """(seed, step with the key's turn in the upper 32 bits), as ``loops.random.dither`` takes them."""
    return np.uint64(key.seed & 0xFFFFFFFFFFFFFFFF), key.step & 0xFFFFFFFF | key.turn << 32


def words(count: int, key: Key, stream: int, start: int) -> np.ndarray:
    """As ``philox.words``: int64 ``[count]``."""
    out = np.empty(count, np.int64)
    _loops("random").words(start, *_key(key), stream, out)
    return out


def uniform(count: int, key: Key, stream: int, start: int) -> torch.Tensor:
    """As ``philox.uniform``: fp32 ``[count]``."""
    out = torch.empty(count)
    _loops("random").dither(start, *_key(key), stream, out.numpy())
    return out


def nearest_levels(rows: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """uint8 index of the nearest level, given the rising edges between levels."""
    out = torch.empty(rows.shape, dtype=torch.uint8)
    _loops("base").nearest_levels(rows.contiguous().numpy(), edges.numpy(), out.numpy())
    return out


def pack_part(codes: torch.Tensor, bits: int, packed: torch.Tensor, count: int, first: int) -> None:
    """Pack uint8 codes as elements ``first`` on of ``count``."""
    _loops("packing").planes(codes.numpy(), bits, packed.numpy(), count, first)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """As ``packing.pack``."""
    packed = room(packed_bytes(codes.numel(), bits), torch.uint8)
    _loops("packing").pack_all(codes.contiguous().numpy(), bits, packed.numpy())
    return packed


def unpack(packed: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """As ``packing.unpack``."""
    codes = room(count, torch.uint8)
    _loops("packing").unpack_all(packed.numpy(), bits, codes.numpy())
    return codes


def largest(x: torch.Tensor, group: int) -> torch.Tensor:
    """fp32: the largest magnitude of each group of a flat fp32 vector."""
    out = room(-(-x.numel() // group), torch.int32)
    _loops("tables").largest(x.numpy(), group, out.numpy())
    return out.view(torch.float32)


def sums(x: torch.Tensor, size: int, what: int) -> torch.Tensor:
    """As ``primitives.sums.sums``."""
    out = torch.empty(-(-x.numel() // size), dtype=torch.float64)
    _loops("sums").sums(x.numpy(), size, what, out.numpy())
    return out


def packed_bytes(count: int, bits: int) -> int:
    """As ``packing.packed_size``."""
    return sum(-(-count * width // 8) for width in (8, 4, 2, 1) if bits & width)
