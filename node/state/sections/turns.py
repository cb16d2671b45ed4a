"""In which order parts of vectors pass through a device that has room for few of them. Pure.

Each part is fetched into a slot, computed with there, and stored. While one part is computed, the next one comes into
another slot and the one before goes back: each turn names the turns that must be over before it begins, and everything
else may happen at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FETCH, COMPUTE, STORE = "fetch", "compute", "store"
What = tuple[str, int]
"""(FETCH, COMPUTE or STORE; the part)."""


@dataclass(frozen=True)
class Turn:
    """One thing to do with a part in its slot. ``after``: what must be done before it begins."""

    do: str
    part: int
    slot: int
    after: tuple[What, ...] = ()


def turns(parts: int, slots: int = 2) -> Iterator[Turn]:
    """The turns of ``parts`` parts in the order in which they are given to their lanes (one for each kind, which does
    its work in order). A part is fetched as soon as the part that had its slot before is given back."""
    fetched = 0
    for part in range(parts):
        while fetched < min(parts, part + slots):
            free: tuple[What, ...] = ((STORE, fetched - slots),) if fetched >= slots else ()
            yield Turn(FETCH, fetched, fetched % slots, free)
            fetched += 1
        yield Turn(COMPUTE, part, part % slots, ((FETCH, part),))
        yield Turn(STORE, part, part % slots, ((COMPUTE, part),))
