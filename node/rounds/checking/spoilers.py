"""Gradient mode: members that drop the group's steps, one after the other, by gradients that are not finite.

A contribution without bytes says so, honestly: in fp16 a loss scale may be too large for it, and with any precision a
batch may overflow; the step is dropped for all. Who says it again and again while others' gradients are finite stops
the run, and leaves fp16's loss scale at its least.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.messages import Contribution

PATIENCE = 16
"""Steps in a row that one member's gradient may spoil: a loss scale that is 2^16 times too large for it alone."""
RELIEF = 1 / 32
"""Of a spoilt step, that each other step makes good: who spoils one in 33 for ever is not named."""


class Spoilers:
    """Counts, on one member, who spoils the parts that it publishes."""

    def __init__(self, me: int) -> None:
        self._me, self._round = me, 0
        self._spoilt: dict[int, float] = {}
        self._now: set[int] = set()
        """The members that spoil this round: counted once, whatever the number of its parts."""

    def found(self, round: int, contributions: Sequence[tuple[int, Contribution]]) -> list[int]:
        """The members (indices) that spoil a part of this round and have spoilt too many. ``contributions``: all of the
        part's first phase."""
        if round != self._round:
            if not self._now:
                self._spoilt = {index: count - RELIEF for index, count in self._spoilt.items() if count > RELIEF}
            self._round, self._now = round, set()
        empty = {index for index, sent in contributions if not sent.sizes}
        if len(empty) == len(contributions):
            return []  # nobody's is finite: it is the loss scale, or the batch
        new = empty - self._now - {self._me}
        self._now |= new
        for index in new:
            self._spoilt[index] = self._spoilt.get(index, 0.0) + 1.0
        return sorted(index for index in new if self._spoilt[index] > PATIENCE)
