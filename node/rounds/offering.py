"""Offers a section's parts as the window allows, and puts sums into the gradient's place (protocol/window.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from .arithmetic.exchange import Exchange
from .checking.disputes import Disputes
from .protocol.machine import Rounds
from .protocol.messages import Contribution, Part
from .protocol.open_round import OpenRound
from .protocol.window import has_room, is_windowed, order, publishers_of


class Offering:
    """One member's offers to a section's rounds in one view."""

    def __init__(
        self,
        exchange: Exchange,
        rounds: Rounds,
        disputes: Disputes,
        coding: Callable[[str], AbstractContextManager[object]],
    ) -> None:
        self._exchange, self._rounds, self._disputes, self._coding = exchange, rounds, disputes, coding
        self.is_windowed = exchange.terms.gradient and is_windowed(rounds.plan)
        self._order = order(rounds.plan.parts)
        self._publishers = publishers_of(rounds.plan)
        self._ready: set[int] = set()
        """Parts of the open round that may be offered and were not yet."""

    def open(self, round: int) -> None:
        """A round begins, with no part ready."""
        self._exchange.open(round)
        self._ready = set()

    def ready(self, parts: Iterable[Part]) -> None:
        """These parts of the open round may be offered. One that was offered is not offered again: its gradient may be
        its sum by now."""
        self._ready |= {part.index for part in parts if not self._rounds.has_offered(part)}

    def place_sums(self, current: OpenRound) -> None:
        """Put the sums that cannot be lost any more into the gradient's place, where this node's own gradient is not
        needed any more. With error feedback the sums stay encoded until the step's commit, and what this node's own
        encodings lost takes the gradient's place.

        Raises:
            Refused: a sum is wrong; it names the member that sent it.
        """
        if not self.is_windowed:
            return
        if self._exchange.carries:
            self._settle(current)
            return
        for part in self._order:
            if part.index not in current.placed and self._rounds.has_offered(part) and self._rounds.is_safe(part):
                with self._coding("add up"):
                    self._exchange.place(current.number, current.results[part.index], current.contributions)
                self._rounds.place(part.index)

    def _settle(self, current: OpenRound) -> None:
        """Free the bytes of this node's contributions that went into a sum which cannot be lost any more."""
        for part in self._order if self._exchange.settles else ():
            if part.index not in current.settled and self._rounds.has_offered(part) and self._rounds.is_safe(part):
                with self._coding("add up"):
                    self._exchange.settle(part)
                self._rounds.settle(part.index)

    def next(self, current: OpenRound) -> tuple[int, Contribution] | None:
        """The part (index) that is to be offered now, and this node's contribution to it; None: none is ready, or there
        is no room."""
        part = self._next(current)
        if part is None:
            return None
        self._ready.remove(part.index)
        with self._coding("encode"):
            made = {part.index: self._exchange.offer(current.number, part)}
            return part.index, self._disputes.signed(made, current.number)[part.index]

    def _next(self, current: OpenRound) -> Part | None:
        first = next((part for part in self._order if part.index in self._ready), None)
        if first is None or not self.is_windowed:
            return first
        me, rounds = self._exchange.me, self._rounds
        lacking = [part for part in self._order if not rounds.is_safe(part)]
        flying = [current.contributions.get((part.index, me)) for part in lacking]
        if has_room([sum(sent.sizes) for sent in flying if sent is not None], self._publishers):
            return first
        return lacking[0] if lacking[0].index in self._ready else None

    def is_done(self, current: OpenRound) -> bool:
        """Whether this node has offered all parts, and their sums are where the step needs them."""
        if not self.is_windowed:
            return True
        placed = self._exchange.carries or len(current.placed) == len(self._order)
        return placed and all(map(self._rounds.has_offered, self._order))
