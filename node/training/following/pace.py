"""How fast the rounds come that a spare follows, beside what its link carries: what it says when it cannot keep up."""

from __future__ import annotations

import time
from collections.abc import Callable

from ....proto.process.rates import rate_text


def rate_needed(rounds_bps: float, snapshot: int, room: int) -> float:
    """Bits a second that a link has to carry for a spare to catch up. ``rounds_bps``: what the rounds take as they are
    made. ``snapshot``: bytes that it has to fetch beside them. ``room``: bytes of rounds that can wait for it here.

    While the snapshot comes over what the rounds leave of the link, no more rounds may be made than there is room for.
    """
    return rounds_bps * (1 + snapshot / room) if snapshot else rounds_bps


class Pace:
    """What has come to one spare since it began to follow. One thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._first: int | None = None
        self._newest = self._rounds = self._bytes = 0

    def made(self, newest: int) -> None:
        """The group has applied this round."""
        self._first = newest if self._first is None else self._first
        self._newest = max(self._newest, newest)

    def came(self, size: int) -> None:
        """A round of so many bytes is here."""
        self._rounds, self._bytes = self._rounds + 1, self._bytes + size

    def told(self, snapshot: int, fetched: int, room: int) -> str:
        """The sentence; ``snapshot``: its bytes, of which so many were ``fetched``; 0: it was here."""
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
