"""The interface by which artifacts are read: name, offset, length."""

from __future__ import annotations

from typing import Protocol

from ....proto.process.progress import Meter, Tell


class Fetch(Protocol):
    """Reads ``length`` bytes (None: to the end) of an artifact from ``offset``: `Wire.fetch`, or a folder's files."""

    def __call__(self, name: str, offset: int = 0, length: int | None = None) -> bytes: ...


def telling(fetch: Fetch, tell: Tell) -> Fetch:
    """``fetch``, which also tells how many bytes of each artifact have come."""
    meters: dict[str, Meter] = {}

    def counted(name: str, offset: int = 0, length: int | None = None) -> bytes:
        meter = meters.setdefault(name, Meter(f"fetching {name}", "bytes", tell))
        data = fetch(name, offset, length)
        meter.add(len(data))
        return data

    return counted
