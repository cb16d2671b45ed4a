"""Compares the rate of the rounds that a spare follows with its link's rate, for the message when it cannot keep up."""

from __future__ import annotations

import time
from collections.abc import Callable

from ....proto.process.rates import rate_text


def rate_needed(rounds_bps: float, snapshot: int, room: int) -> float:
    """The bits per second that a spare's link must carry for the spare to catch up. ``rounds_bps``: bits per second of
    the rounds as they are made. ``snapshot``: bytes of the snapshot that it must fetch meanwhile. ``room``: bytes of
    rounds that can wait here.

    The snapshot gets the bandwidth that the rounds leave; until it is complete, at most ``room`` bytes of rounds may
    accumulate.
    """
    return rounds_bps * (1 + snapshot / room) if snapshot else rounds_bps


class Pace:
    """Counts what one spare has received since it began to follow. Not thread safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._first: int | None = None
        self._newest = self._rounds = self._bytes = 0

    def made(self, newest: int) -> None:
        """The group has applied round ``newest``."""
        self._first = newest if self._first is None else self._first
        self._newest = max(self._newest, newest)

    def came(self, size: int) -> None:
        """A round of ``size`` bytes has arrived."""
        self._rounds, self._bytes = self._rounds + 1, self._bytes + size

    def told(self, snapshot: int, fetched: int, room: int) -> str:
        """The message. ``snapshot``: bytes of the snapshot (0: none was needed), of which ``fetched`` have come."""
        seconds = max(self._clock() - self._began, 1e-3)
        made = self._newest - (self._first or 0)
        if not self._rounds or not made:
            return f"{made} rounds were made in {seconds:.0f} s, and its link carried {self._rounds} of them"
        rounds = 8.0 * self._bytes / self._rounds * made / seconds
        needs, carried = rate_needed(rounds, snapshot, room), 8.0 * (self._bytes + fetched) / seconds
        beside = " beside what it has to fetch first" if snapshot else ""
        return (
            f"its link carried {rate_text(carried)}, and the rounds as they are made take {rate_text(rounds)}: "
            f"to keep up{beside} it would need {rate_text(needs)}"
        )
