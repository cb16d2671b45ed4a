"""When to say again what somebody waits for: whatever carries a message may lose it, and nobody may wait for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...proto.control_pb2 import Report

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 60.0


class SayAgain:
    """One thing that was said just now, and is to be said again while it has no effect, less and less often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._pause = clock, FIRST_SECONDS
        self._at = clock() + self._pause

    def due(self) -> bool:
        """Whether it is to be said now; then the next time is later."""
        now = self._clock()
        if now < self._at:
            return False
        self._pause = min(2 * self._pause, LONGEST_SECONDS)
        self._at = now + self._pause
        return True


class Unanswered:
    """The newest report that the coordinator has to act on, until it has. It is said again meanwhile."""

    def __init__(self, report: Callable[[Report], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._said: Report | None = None
        self._again = SayAgain(clock)

    def say(self, report: Report) -> None:
        """Say something that takes the place of what was said before."""
        self._said, self._again = report, SayAgain(self._clock)
        self._report(report)

    def answered(self) -> None:
        """The coordinator has acted on it."""
        self._said = None

    def tick(self) -> None:
        """Say it again if it is time."""
        if self._said is not None and self._again.due():
            self._report(self._said)
