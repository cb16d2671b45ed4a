"""Whether the compiled loops are used (the extra ``fast``: numba; FARFLUNG_FAST=0 turns them off)."""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

COMPILING_S = 4.0
"""Seconds that loading or compiling may take: a search that has less goes without, unless it was done before."""


@lru_cache(maxsize=1)
def loops() -> Any:
    """The module of loops; None where numba is not there or not wanted."""
    if os.environ.get("FARFLUNG_FAST") == "0":
        return None
    try:
        return importlib.import_module(".loops", __package__)
    except ImportError:
        return None


def loops_within(seconds: float) -> Any:
    """The loops for a search of so many seconds."""
    return loops() if seconds >= COMPILING_S or loops.cache_info().currsize else None
