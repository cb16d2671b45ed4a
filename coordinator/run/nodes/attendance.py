"""An open control stream, and what its heartbeats say."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from ....proto import control_pb2 as pb

_LOADING_S, _ALIVE_S = 2.5, 1.5


@dataclass
class Attendance:
    """One open control stream: orders go into ``queue``, None ends it."""

    name: str
    session: str
    since: float
    heard: float = -math.inf
    """When its last heartbeat came."""
    queue: asyncio.Queue[pb.Order | None] = field(default_factory=asyncio.Queue)


@dataclass
class Live:
    """What only the running coordinator knows of a node."""

    doing: str = ""
    trainer_age: float = 0.0


def idle_of(beat: pb.Heartbeat) -> float:
    """Seconds since the trainer's last action by a heartbeat; 0 where the number is impossible."""
    return round(beat.trainer_age, 2) if 0 <= beat.trainer_age < math.inf else 0.0


def is_ready(beat: pb.Heartbeat, attended_s: float) -> bool:
    """Whether a node's trainer is up: it reports what it does, or it has acted lately.

    A trainer that still loads its libraries does not act, and its I/O process starts a moment before it; that is why
    the second condition needs some time.
    """
    if beat.doing not in ("", "starting"):
        return True
    return attended_s >= _LOADING_S and beat.trainer_age < _ALIVE_S
