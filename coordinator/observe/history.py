"""A run's curves in a bounded number of points: neighbours are merged when there are too many. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ..store.rows import EvalRow, StepRow
from .observed import PARTS

POINTS = 600
"""The limit on points; up to twice as many are kept before neighbours are merged."""


@dataclass
class Point:
    """``count`` steps, the last of which is ``step``: sums, and the loss as a sum over the steps that have one."""

    step: int
    count: int = 0
    losses: int = 0
    loss: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    _: KW_ONLY
    sent: int = 0
    dense: int = 0
    parts: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))

    @classmethod
    def of(cls, row: tuple[int, int, int, float, int, float, int, int]) -> Point:
        """A row of the stored curve (``StepRows.curve``)."""
        return cls(*row[:6], sent=row[6], dense=row[7])

    def add(self, other: Point) -> None:
        """Take the steps of a later point in."""
        self.step, self.count = other.step, self.count + other.count
        self.losses, self.loss = self.losses + other.losses, self.loss + other.loss
        self.tokens, self.seconds = self.tokens + other.tokens, self.seconds + other.seconds
        self.sent, self.dense = self.sent + other.sent, self.dense + other.dense
        self.parts = [mine + theirs for mine, theirs in zip(self.parts, other.parts, strict=True)]

    def shown(self) -> list[Any]:
        """[step, loss or null, tokens/s, bytes sent a step, bytes in fp16 a step, [seconds of each part a step]]."""
        count = self.count
        return [
            self.step,
            round(self.loss / self.losses, 5) if self.losses else None,
            round(self.tokens / self.seconds, 2) if self.seconds else 0,
            self.sent // count,
            self.dense // count,
            [round(part / count, 5) for part in self.parts],
        ]


class History:
    """The curves of steps and evaluations. ``edition`` changes when points that were handed out are no longer true."""

    def __init__(self, points: Iterable[Point] = (), evals: Iterable[EvalRow] = (), limit: int = POINTS) -> None:
        """``points`` and ``evals``: what an earlier start of the coordinator has seen."""
        self._points = list(points)
        self._limit, self._width = limit, max((point.count for point in self._points), default=1)
        self._evals: list[tuple[int, float]] = []
        self.edition = 0
        for one in evals:
            self.evaluation(one)

    def step(self, row: StepRow, parts: Sequence[float] | None) -> None:
        """A finished step, and where its time went if that is known."""
        if self._points and row.step <= self._points[-1].step:
            self.back_to(row.step - 1)
        sent, loss = row.bytes_updates + row.bytes_activations, row.loss
        known = loss is not None
        point = Point(row.step, 1, int(known), loss or 0.0, row.tokens, row.seconds, sent=sent, dense=row.bytes_dense)
        if parts is not None:
            point.parts = list(parts)
        if self._points and self._points[-1].count < self._width:
            self._points[-1].add(point)
        else:
            self._points.append(point)
        if len(self._points) > 2 * self._limit:
            self._points, self._width = merged(self._points), 2 * self._width
            self.edition += 1

    def evaluation(self, row: EvalRow) -> None:
        """An evaluation."""
        while self._evals and self._evals[-1][0] >= row.step:
            self._evals.pop()
        self._evals.append((row.step, round(row.loss, 5)))
        if len(self._evals) > 2 * self._limit:
            self._evals = self._evals[1::2]
            self.edition += 1

    def back_to(self, step: int) -> None:
        """Delete the points after ``step``: the run has gone back to it."""
        kept = [point for point in self._points if point.step <= step]
        if len(kept) < len(self._points) or any(one > step for one, _ in self._evals):
            self.edition += 1
        self._points = kept
        self._evals = [one for one in self._evals if one[0] <= step]

    def since(self, edition: int, points: int, evals: int) -> dict[str, Any]:
        """The rows that a client lacks which has ``points`` points and ``evals`` evaluations of an ``edition``. In the
        answer ``points`` and ``evals`` are the indices at which its rows begin."""
        if edition != self.edition:
            points = evals = 0
        first = max(0, min(points, len(self._points)) - 1)  # the last one may have grown
        return {
            "edition": self.edition,
            "points": first,
            "evals": min(evals, len(self._evals)),
            "point_rows": [point.shown() for point in self._points[first:]],
            "eval_rows": [list(one) for one in self._evals[evals:]],
        }


def merged(points: Sequence[Point]) -> list[Point]:
    """Every two neighbours merged into one: half as many points."""
    found = []
    for at in range(0, len(points), 2):
        point = points[at]
        for other in points[at + 1 : at + 2]:
            point.add(other)
        found.append(point)
    return found
