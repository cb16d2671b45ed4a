"""When a node that has lost its run, or not found it again, joins again by itself.

A machine is suspended, a line is down for a minute, a router starts again, everything starts after a power cut and
this machine first: waiting mends it, and nobody sits in front of the node. What waiting cannot mend ends it: the run is
over, a person has put it out, another machine has its key.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable

from ..proto.errors import FarflungError, NotNow, Parted, Unreachable
from .device.limits import Owner, Wish

FIRST_S, LONGEST_S, GROWTH = 1.0, 60.0, 2.0
SETTLED_S = 300.0
"""Seconds after which a life counts as successful: the next pause is short again."""
_LOOK_S = 0.5
MOST_CRASHES, CRASHES_SECONDS = 3, 3600.0


class RunOver(NotNow):
    """The coordinator is there, and the run is over."""


class Crashes:
    """How often the I/O process has ended: a few times are worth a new one, more are a fault of this machine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._times = clock, deque[float](maxlen=MOST_CRASHES)

    def again(self) -> bool:
        """The I/O process has ended once more: whether to start again."""
        now = self._clock()
        often = len(self._times) == MOST_CRASHES and now - self._times[0] < CRASHES_SECONDS
        self._times.append(now)
        return not often


class Backoff:
    """The pause before each next try: twice as long each time, a minute at most, up to a fifth shorter or longer."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance, self._pause = chance, FIRST_S

    def next(self, lived_s: float) -> float:
        """Seconds to wait now, after a life of ``lived_s`` seconds."""
        if lived_s >= SETTLED_S:
            self._pause = FIRST_S
        pause, self._pause = self._pause, min(LONGEST_S, GROWTH * self._pause)
        return pause * (0.8 + 0.4 * self._chance())


def mends(problem: FarflungError, was_in: bool, patience: float | None = None, looked_s: float = 0.0) -> bool:
    """Whether waiting may mend what has ended a life, or kept one from beginning. ``was_in``: this machine has a key
    with which it was in the run; without one a wrong address is the likelier reason, and is to be said at once.

    ``patience``: seconds that the owner lets it look for a coordinator that does not answer or take it, None where the
    owner has said nothing; it has looked for ``looked_s``."""
    if isinstance(problem, RunOver):
        return False
    if patience is None:
        patience = math.inf if was_in else 0.0
    return isinstance(problem, Parted) or (isinstance(problem, Unreachable | NotNow) and looked_s < patience)


def told(problem: FarflungError, pause: float, was_in: bool = True, left_s: float = 0.0) -> str:
    """The event for the screen. ``left_s``: how much longer the node looks for the run."""
    again = "joins again under its key" if was_in else "tries again"
    said = f"{problem.message}: this node {again} in {max(1.0, pause):.0f} s"
    if pause < LONGEST_S / 2 or isinstance(problem, Parted):
        return said
    if math.isinf(left_s):
        return f"{said}, and so on until it is in or you stop it (--patience 12h would end it after 12 hours)"
    return f"{said}, and gives up in {max(1.0, left_s / 60):.0f} min (--patience)"


def wait(seconds: float, owner: Owner, clock: Callable[[], float] = time.monotonic) -> Wish | None:
    """Wait; returns early with the owner's wish to leave, if there is one."""
    until = clock() + seconds
    while (left := until - clock()) > 0:
        wish = owner.wish()
        if wish is not None and not wish.stays:
            return wish
        time.sleep(min(left, _LOOK_S))
    return None
