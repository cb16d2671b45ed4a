"""Whether loops are compiled (the extra ``fast``: numba; FARFLUNG_FAST=0 turns it off)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

Loops = tuple[tuple[str, str], ...]
"""Modules and loops of theirs."""
COMPILING_S, LOADING_S = 4.0, 0.8
"""Seconds that compiling and that loading what was compiled before may take: a search that has less goes without."""
SOURCES = Path(__file__).parent.parent
STEP: Loops = (("search/swaps", "_swaps"), ("timing/pipeline", "pipeline_end"))
PUBLISHED: Loops = (("published/loops", "anneal_published"),)
"""What a search for a short step, and one for the published cost, uses."""


@lru_cache(maxsize=1)
def numba() -> Any:
    """The module numba; None where it is not there or not wanted."""
    if os.environ.get("FARFLUNG_FAST") == "0":
        return None
    try:
        return importlib.import_module("numba")
    except ImportError:
        return None


@lru_cache(maxsize=1)
def _used() -> Any:
    """numba, from when a search uses it."""
    return numba()


def ready(seconds: float, loops: Loops) -> bool:
    """Whether a search of so many seconds uses compiled loops; it loads numba where it does."""
    enough = seconds >= COMPILING_S or (seconds >= LOADING_S and is_kept(loops)) or bool(_used.cache_info().currsize)
    return enough and _used() is not None


def is_loaded() -> bool:
    """Whether compiled loops are used without waiting for numba."""
    return bool(_used.cache_info().currsize) and _used() is not None


def is_kept(loops: Loops, sources: Path = SOURCES) -> bool:
    """Whether numba's cache beside the sources has all these loops, of the sources as they are. numba keeps it
    elsewhere where it may not write there, and this does not look for it."""
    for module, name in loops:
        source = sources / f"{module}.py"
        try:
            changed = source.stat().st_mtime
            kept = [one.stat().st_mtime for one in (source.parent / "__pycache__").glob(f"{source.stem}.{name}-*.nbi")]
        except OSError:
            return False
        if not kept or max(kept) < changed:
            return False
    return True


@lru_cache(maxsize=64)
def compiled(function: Callable[..., Any]) -> Any:
    """The function, compiled at its first call and kept in numba's cache; as it is where numba is not there."""
    module = numba()
    if module is None:
        return function
    return module.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)
