"""A section that another rank of an island keeps: what its exchange in the first process asks of that rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from ...rounds.arithmetic.applier import TakeOff
from ...rounds.arithmetic.update import Update
from ...rounds.protocol.messages import Contribution, Decide, Part, Result, Sent
from ...rounds.protocol.payloads import Refused


class Orders(Protocol):
    """What is ordered of a rank, for a section by its name: as the methods of `Exchange` and `Way` of these names."""

    def offer(self, rank: int, name: str, number: int, part: Part) -> tuple[Contribution, float]: ...
    def place(self, rank: int, name: str, number: int, found: Mapping[int, Result], contributions: Sent) -> None: ...
    def square(self, rank: int, name: str, number: int, found: Mapping[int, Result], contributions: Sent) -> float: ...
    def x_moves(self, rank: int, name: str, offered: Iterable[int]) -> None: ...
    def advance(self, rank: int, name: str, result: Result) -> Contribution: ...
    def decide(self, rank: int, name: str, number: int, decide: Decide) -> tuple[Result, list[Refused]]: ...
    def check(self, rank: int, name: str, number: int, found: Mapping[int, Result]) -> None: ...
    def applied(self, rank: int, name: str) -> None: ...


class Kept:
    """As `Elsewhere`."""

    def __init__(self, rounds: Orders, name: str, rank: int) -> None:
        self.offer = partial(rounds.offer, rank, name)
        self.place = partial(rounds.place, rank, name)
        self.square = partial(rounds.square, rank, name)
        self.x_moves = partial(rounds.x_moves, rank, name)


class KeptPhases:
    """As `Way`: rounds in phases, whose programs the rank runs from one phase to the next."""

    def __init__(self, rounds: Orders, name: str, rank: int) -> None:
        self._rounds, self._name, self._rank = rounds, name, rank

    def offer(self, round: int, part: Part) -> Contribution:
        return self._rounds.offer(self._rank, self._name, round, part)[0]

    def advance(self, result: Result) -> Contribution:
        return self._rounds.advance(self._rank, self._name, result)

    def decide(self, round: int, decide: Decide) -> tuple[Result, list[Refused]]:
        return self._rounds.decide(self._rank, self._name, round, decide)

    def check(self, round: int, found: Mapping[int, Result], contributions: Sent) -> None:
        self._rounds.check(self._rank, self._name, round, found)

    def applied(self) -> None:
        self._rounds.applied(self._rank, self._name)

    def updates(self, round: int, found: Mapping[int, Result], contributions: Sent) -> Iterator[tuple[slice, Update]]:
        raise self._not_here()

    def outcomes(self, results: Sequence[Result]) -> Iterator[tuple[Part, bool]]:
        raise self._not_here()

    def own_pieces(self, part: Part) -> Iterator[tuple[slice, TakeOff]]:
        raise self._not_here()

    def _not_here(self) -> RuntimeError:
        return RuntimeError(f"rank {self._rank} of the island has the values of {self._name}")
