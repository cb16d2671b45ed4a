"""File patterns of a job, as glob and fsspec read them: what stands there by itself is no pattern."""

from __future__ import annotations

import os
from glob import escape
from pathlib import Path


def as_glob(pattern: str) -> str:
    """The pattern with the brackets escaped of folders and files that are there under exactly these names."""
    if "[" not in pattern or "://" in pattern or "::" in pattern:
        return pattern
    first, *others = Path(pattern).parts
    here, found = Path(first), [first if not os.path.lexists(first) else escape(first)]
    for part in others:
        here = here / part
        found.append(escape(part) if "[" in part and os.path.lexists(here) else part)
    return str(Path(*found))
