"""When a node that has lost its run, or not found it again, joins again by itself.

Waiting mends a suspended machine, a line that is down for a minute, a router that restarts, or a power cut after which
this machine starts before the coordinator's; so the node tries again without a person. Where waiting cannot help, the
node ends: the run is over, a person has put the node out, another machine has its key.
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
"""A life that lasted so many seconds counts as successful: the next pause is the shortest again."""
_LOOK_S = 0.5
MOST_CRASHES, CRASHES_SECONDS = 3, 3600.0


class RunOver(NotNow):
    """The coordinator is there, and the run is over."""


class Crashes:
    """Counts unexpected ends of the I/O process: after a few the node starts again, more are a fault of this
    machine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._times = clock, deque[float](maxlen=MOST_CRASHES)

    def again(self) -> bool:
        """Count another end of the I/O process. Returns whether the node starts again."""
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
    """Whether waiting may mend ``problem``, which ended a life or prevented one. ``was_in``: this machine has a key
    with which it was in the run; without one a wrong address is the likelier reason, and the person is told at once.

    ``patience``: for how many seconds the node looks for a coordinator that does not answer or does not take it; None:
    the owner set none. ``looked_s``: seconds that it has looked so far."""
    if isinstance(problem, RunOver):
        return False
    if patience is None:
        patience = math.inf if was_in else 0.0
    return isinstance(problem, Parted) or (isinstance(problem, Unreachable | NotNow) and looked_s < patience)


def told(problem: FarflungError, pause: float, was_in: bool = True, left_s: float = 0.0) -> str:
    """The sentence that tells the person of the next try. ``left_s``: for how many more seconds the node tries."""
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
