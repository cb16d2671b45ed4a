"""What the membership machine remembers of a run that stands still, and of who held one up (waits.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """``at``: when a node said for whom it waits. No ``peers``: for the coordinator. ``moves``: bytes arrive there."""

    at: float
    peers: frozenset[str] = frozenset()
    moves: bool = False


@dataclass(frozen=True)
class Standstill:
    """Since ``asked`` each of ``suspects`` explains it, each time that it was looked at."""

    asked: float
    suspects: frozenset[str]


@dataclass(frozen=True)
class Aside:
    """A node that has held the others up: how many ``times``, and ``until`` when it has no place."""

    times: int
    until: float
