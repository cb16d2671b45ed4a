"""Whether loops are compiled (the extra ``fast``: numba; FARFLUNG_FAST=0 turns it off)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

Loops = tuple[tuple[str, str], ...]
"""(module, name of a loop in it) of compiled loops."""
COMPILING_S, LOADING_S = 4.0, 0.8
"""Least seconds of a search that compiles loops first, and of one that loads loops compiled earlier; a search with less
time uses plain Python loops."""
SOURCES = Path(__file__).parent.parent
STEP: Loops = (("search/swaps", "_swaps"), ("timing/pipeline", "pipeline_end"))
PUBLISHED: Loops = (("published/loops", "anneal_published"),)
"""The loops of a search for a short step, and of one for the published cost."""


@lru_cache(maxsize=1)
def numba() -> Any:
    """The module numba; None where it is not installed or FARFLUNG_FAST=0."""
    if os.environ.get("FARFLUNG_FAST") == "0":
        return None
    try:
        return importlib.import_module("numba")
    except ImportError:
        return None


@lru_cache(maxsize=1)
def _used() -> Any:
    """numba, imported at the first call; the cache's size tells whether that call was made."""
    return numba()


def ready(seconds: float, loops: Loops) -> bool:
    """Whether a search of `seconds` seconds uses compiled loops; loads numba if so."""
    enough = seconds >= COMPILING_S or (seconds >= LOADING_S and is_kept(loops)) or bool(_used.cache_info().currsize)
    return enough and _used() is not None


def is_loaded() -> bool:
    """Whether numba is loaded, so that compiled loops can be used at once."""
    return bool(_used.cache_info().currsize) and _used() is not None


def is_kept(loops: Loops, sources: Path = SOURCES) -> bool:
    """Whether numba's cache beside the sources has all these loops, compiled from the present sources. Where numba may
    not write there, it keeps its cache elsewhere; this function does not look there."""
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
    """The function, compiled at its first call and kept in numba's cache; unchanged where numba is not installed."""
    module = numba()
    if module is None:
        return function
    return module.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)
