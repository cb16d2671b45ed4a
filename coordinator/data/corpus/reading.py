"""The progress of reading texts: the place to continue from, and marks by which any token is found again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ....proto.messages.pieces import MOST
from ..files.places import START, Place

Mark = tuple[int, int, int, int, int]
"""(number of the token, number of the file, and the three numbers of the `Place` at which a part begins with that
token)."""


class Point(NamedTuple):
    """A reading continues at ``place`` of file ``number``. ``tokens``, and the counts of `density.Counted`, are those
    before it."""

    number: int
    place: Place
    tokens: int
    counted: tuple[int, ...]


@dataclass
class Reading:
    """The progress of a reading. ``every``: least tokens between two marks. ``points``: the last point in each file, or
    in every ``apart`` files where there are very many."""

    every: int
    marks: list[Mark] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    apart: int = 1

    @property
    def at(self) -> Point:
        """The point at which reading continues."""
        return self.points[-1] if self.points else Point(0, START, 0, ())

    def reached(self, point: Point) -> None:
        """Record that everything before this point was read."""
        if self.points and self.points[-1].number // self.apart == point.number // self.apart:
            self.points.pop()
        if len(self.points) > 2 * MOST:
            self.points, self.apart = self.points[::2], 2 * self.apart
        self.points.append(point)

    def back_to(self, files: int) -> None:
        """Keep only what came from the first ``files`` files."""
        while self.points and (self.at.number, self.at.place) > (files, START):
            self.points.pop()
        self.marks = [mark for mark in self.marks if mark[0] < self.at.tokens]
