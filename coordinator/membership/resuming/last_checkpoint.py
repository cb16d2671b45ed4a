"""The end of a run whose last checkpoint does not arrive: the final weights are only on the nodes.

So the run is not done. Another view makes the checkpoint again, until the disk has room and the links carry it. With
``--give-up`` the run ends without it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

AGAIN_S = 30.0
"""Seconds until a checkpoint that the disk could not store is made again."""
NOT_DONE = (
    "the run is not done, its weights are on the nodes, and it is made again: make room where checkpoints go, "
    "or start the coordinator again with --give-up to end without"
)


class Last(enum.Enum):
    """What to do about the last checkpoint."""

    WAIT = enum.auto()
    AGAIN = enum.auto()
    GIVE_UP = enum.auto()


@dataclass(frozen=True)
class Unstored:
    """The disk could not store the checkpoint of ``step``, first at time ``at``. ``told``: a warning was given."""

    step: int
    why: str
    at: float
    told: bool = False


def last_of(give_up: bool, anybody: bool, stood: str, unstored: Unstored | None, now: float) -> Last:
    """What to do about the last checkpoint. ``anybody``: whether there are nodes; ``stood``: how long nothing has
    moved, in words, empty while the checkpoint may still arrive; ``unstored``: set if the disk could not store it."""
    if anybody and not stood and unstored is None:
        return Last.WAIT
    if give_up:
        return Last.GIVE_UP
    soon = unstored is not None and now < unstored.at + AGAIN_S
    return Last.WAIT if anybody and soon else Last.AGAIN
