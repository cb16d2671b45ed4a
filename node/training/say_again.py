"""When to repeat a message that another node waits for: any message may be lost, and no node may wait for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...proto.control_pb2 import Report

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 60.0


class SayAgain:
    """Decides when to repeat one message that was just sent: less and less often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._pause = clock, FIRST_SECONDS
        self._at = clock() + self._pause

    def due(self) -> bool:
        """Whether to repeat it now; if so, the next pause is longer."""
        now = self._clock()
        if now < self._at:
            return False
        self._pause = min(2 * self._pause, LONGEST_SECONDS)
        self._at = now + self._pause
        return True


class Unanswered:
    """Repeats the newest report that the coordinator must act on, until it has."""

    def __init__(self, report: Callable[[Report], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._said: Report | None = None
        self._again = SayAgain(clock)

    def say(self, report: Report) -> None:
        """Send a report; it replaces the one before."""
        self._said, self._again = report, SayAgain(self._clock)
        self._report(report)

    def answered(self) -> None:
        """The coordinator has acted on the report."""
        self._said = None

    def tick(self) -> None:
        """Repeat the report if it is time."""
        if self._said is not None and self._again.due():
            self._report(self._said)
