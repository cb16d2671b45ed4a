"""Level tables: fp32 values that encoder and decoder share, so part of the wire format.

They are read from ``tables.json``, which ``fitted/solvers`` wrote, and not computed again: that takes seconds, and the
last bits of logarithms and linear algebra may differ between machines.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch


@lru_cache(maxsize=1)
def _kept() -> dict[str, dict[str, Any]]:
    kept: dict[str, dict[str, Any]] = json.loads((files(__package__) / "tables.json").read_text())
    return kept


@lru_cache(maxsize=64)
def _lloyd(bits: int, device: str) -> torch.Tensor:
    half = torch.tensor(_kept()["lloyd"][str(bits)], dtype=torch.float32)
    return torch.cat([-half.flip(0), half]).to(device)


def lloyd(bits: int, device: torch.device) -> torch.Tensor:
    """The 2^bits Lloyd-Max levels of N(0, 1), rising."""
    return _lloyd(bits, str(device))


@lru_cache(maxsize=64)
def _quic(bits: int, shared: bool, device: str) -> torch.Tensor:
    rows = _kept()["quic_shared"][str(bits)] if shared else (_kept()["quic"][str(bits)],)
    return torch.tensor(rows, dtype=torch.float32, device=device)


def quic(bits: int, shared: bool, device: torch.device) -> torch.Tensor:
    """QUIC-FL's levels ``[H, 2^bits]``; H is 1 without shared randomness."""
    return _quic(bits, shared, str(device))


@lru_cache(maxsize=8)
def absmax_levels(bits: int) -> torch.Tensor:
    """2^bits levels on [-1, 1] for blocks of 256 normal values divided by their largest."""
    return torch.tensor(_kept()["absmax"][str(bits)], dtype=torch.float32)
