"""A job's file patterns for glob and fsspec. A pattern that is the exact name of an existing file means that file."""

from __future__ import annotations

import os
from glob import escape
from pathlib import Path


def as_glob(pattern: str) -> str:
    """The pattern, where brackets are escaped if a folder or file with exactly this name exists."""
    if "[" not in pattern or "://" in pattern or "::" in pattern:
        return pattern
    first, *others = Path(pattern).parts
    here, found = Path(first), [first if not os.path.lexists(first) else escape(first)]
    for part in others:
        here = here / part
        found.append(escape(part) if "[" in part and os.path.lexists(here) else part)
    return str(Path(*found))
