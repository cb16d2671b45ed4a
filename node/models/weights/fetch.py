"""How files of the run are read: by name and range."""

from __future__ import annotations

from typing import Protocol


class Fetch(Protocol):
    """Reads ``length`` bytes (None: to the end) of an artifact from ``offset``: `Wire.fetch`, or a folder's files."""

    def __call__(self, name: str, offset: int = 0, length: int | None = None) -> bytes: ...
