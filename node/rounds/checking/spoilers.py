"""Gradient mode: members that drop the group's steps, one after the other, by gradients that are not finite.

A contribution without bytes says so, honestly: in fp16 a loss scale may be too large for it, and with any precision a
batch may overflow; the step is dropped for all. Who says it again and again while others' gradients are finite stops
the run, and leaves fp16's loss scale at its least. Nobody gets points whose gradient came through another node, which
may have spoilt it: then the pipeline's nodes are named together, once in a view.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ....job.schema import Train
from ....proto.words.loss_scale import LEAST
from ....scheduler import Plan
from ...state.loss_scale import FIRST
from ..protocol.messages import Contribution, RoundPlan

PATIENCE = 16
"""Steps in a row that one member's gradient may spoil."""
HALVINGS = int(math.log2(FIRST / LEAST)) + 1
"""The same in fp16: one member alone may need the least loss scale, and then overflows each time it has doubled."""
RELIEF = 1 / 32
"""Of a spoilt step, that each other step makes good: who spoils one in 33 for ever is not named."""


@dataclass(frozen=True)
class Spoiler:
    """A member (index) that spoils too many steps, with the sentence. ``among``: the nodes of its pipeline, of which it
    is one; empty: nobody else had to do with its gradient."""

    member: int
    why: str
    among: tuple[str, ...] = ()


class Spoilers:
    """Counts, on one member, who spoils the parts that it publishes."""

    def __init__(
        self,
        me: int,
        judged: Collection[int],
        patience: int | None = None,
        relief: float | None = None,
        rows: Mapping[int, tuple[str, ...]] | None = None,
    ) -> None:
        """``judged``: the members (indices) that may be named alone. ``patience``: None: `PATIENCE`. ``relief``: None:
        `RELIEF`. ``rows``: for members whose gradient comes through other nodes, the nodes of its pipeline."""
        self._rows = {index: row for index, row in (rows or {}).items() if index != me}
        self._judged, self._round = (frozenset(judged) - {me}) | self._rows.keys(), 0
        self._told: set[int] = set()
        """The members whose pipelines have been named in this view."""
        self.patience = PATIENCE if patience is None else patience
        self._relief = RELIEF if relief is None else relief
        self._spoilt: dict[int, float] = {}
        self._now: set[int] = set()
        """The members that spoil this round: counted once, whatever the number of its parts."""

    def found(self, round: int, contributions: Sequence[tuple[int, Contribution]]) -> list[Spoiler]:
        """The members that spoil a part of this round and have spoilt too many. ``contributions``: all of the part's
        first phase."""
        if round != self._round:
            for index in self._spoilt.keys() - self._now:
                self._spoilt[index] = max(0.0, self._spoilt[index] - self._relief)
            self._round, self._now = round, set()
        empty = {index for index, sent in contributions if not sent.sizes}
        if len(empty) == len(contributions):
            return []  # nobody's is finite: it is the loss scale, or the batch
        new = (empty & self._judged) - self._now
        self._now |= new
        for index in new:
            self._spoilt[index] = self._spoilt.get(index, 0.0) + 1.0
        many = sorted(index for index in new - self._told if self._spoilt[index] > self.patience)
        self._told |= self._rows.keys() & set(many)
        return [self._named(index) for index in many]

    def _named(self, index: int) -> Spoiler:
        why = f"gradient is not finite, as in more than {self.patience} steps before, where others' are"
        row = self._rows.get(index)
        if row is None:
            return Spoiler(index, f"its {why}")
        whose = f"one of {', '.join(row[:-1])} and {row[-1]}, and who it is cannot be told from here"
        return Spoiler(index, f"the pipeline {' > '.join(row)} spoils steps ({whose}): its {why}", row)


def spoilers_of(train: Train, plan: Plan, rounds: RoundPlan, me: int) -> Spoilers:
    """Those of a section in a view. In fp16 a loss scale that has doubled may spoil a step each time."""
    shared = {name: tuple(dict.fromkeys(row)) for row in plan.pipelines if len(set(row)) > 1 for name in row}
    rows = {index: shared[name] for index, name in enumerate(rounds.members) if name in shared}
    judged = [index for index in range(len(rounds.members)) if index not in rows]
    if train.precision != "fp16":
        return Spoilers(me, judged, rows=rows)
    return Spoilers(me, judged, HALVINGS, max(RELIEF, 1 / train.loss_scale_steps), rows)
