"""Whether loops are compiled (the extra ``fast``: numba; FARFLUNG_FAST=0 turns it off)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

COMPILING_S = 4.0
"""Seconds that loading or compiling may take: a search that has less goes without, unless it was done before."""


@lru_cache(maxsize=1)
def numba() -> Any:
    """The module numba; None where it is not there or not wanted."""
    if os.environ.get("FARFLUNG_FAST") == "0":
        return None
    try:
        return importlib.import_module("numba")
    except ImportError:
        return None


def ready(seconds: float) -> bool:
    """Whether a search of so many seconds compiles its loops; it loads numba where it does."""
    return (seconds >= COMPILING_S or bool(numba.cache_info().currsize)) and numba() is not None


def is_loaded() -> bool:
    """Whether compiled loops are used without waiting for numba."""
    return bool(numba.cache_info().currsize) and numba() is not None


@lru_cache(maxsize=64)
def compiled(function: Callable[..., Any]) -> Any:
    """The function, compiled at its first call and kept in numba's cache; as it is where numba is not there."""
    module = numba()
    if module is None:
        return function
    return module.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)
