"""Compiled loops for the CPU (the optional extra ``fast``: numba). Same results, bit for bit, without it."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch


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
