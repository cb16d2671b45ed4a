"""What the membership machine remembers of a standstill, and of nodes that held others up (waits.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A node's report of the ``peers`` for which it waits (empty: for the coordinator), made at time ``at``. ``moves``:
    bytes arrive at it."""

    at: float
    peers: frozenset[str] = frozenset()
    moves: bool = False


@dataclass(frozen=True)
class Standstill:
    """A standstill. Each of ``suspects`` has explained it in every look since the time ``asked``."""

    asked: float
    suspects: frozenset[str]


@dataclass(frozen=True)
class Aside:
    """A node that has held the others up: how many ``times``, and ``until`` when it has no place."""

    times: int
    until: float
