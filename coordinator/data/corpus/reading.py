"""How far texts were read: the place to go on from, and the marks that find any token again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ....proto.messages.pieces import MOST
from ..files.places import START, Place

Mark = tuple[int, int, int, int, int]
"""(token, number of a file, and the three of the place in it where that token begins a part)."""


class Point(NamedTuple):
    """A reading goes on at ``place`` of file ``number``; ``tokens`` and what `density.Counted` counted lie before."""

    number: int
    place: Place
    tokens: int
    counted: tuple[int, ...]


@dataclass
class Reading:
    """How far a reading is. ``every``: tokens between two marks at least. ``points``: the last in each file, or in
    each ``apart`` files where there are very many."""

    every: int
    marks: list[Mark] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    apart: int = 1

    @property
    def at(self) -> Point:
        """Where it goes on."""
        return self.points[-1] if self.points else Point(0, START, 0, ())

    def reached(self, point: Point) -> None:
        """Everything before this point is taken."""
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
