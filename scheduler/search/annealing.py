"""Swap annealing and crossover over explicit placements, evaluated incrementally and many swaps at a time.

A swap of two places touches two pipelines and two groups. Only those are evaluated again, for a batch of random
swaps at once in numpy, so that 64 devices get some hundred thousand evaluations a second without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy

from ..networks.devices import Matrix
from ..timing.candidate import Places
from ..timing.estimate import Cut, Estimator
from ..workloads.layers import beside, smaller
from .shapes import needed_memory

TIE = 0.02
"""Weight of the mean terms that are added to the maxima, so that the search has a slope to follow on a plateau."""


@dataclass
class Found:
    """A placement and its value, the analytic seconds of a step with the mean terms added. spare: device indices left
    out."""

    places: Places
    spare: list[int]
    value: float
    origin: str


class Searcher:
    """The state of the annealing for one shape and one cut."""

    def __init__(self, estimator: Estimator, cut: Cut, places: Places, spare: list[int]) -> None:
        self.estimator = estimator
        self.cut = cut
        self.pipelines, self.stages = places.shape
        self.slots = places.size
        self.total = float(estimator.workload.microbatches)
        group = max(self.pipelines, 1)
        self.update = 2.0 * cut.update / group
        self.sent = estimator.sent
        self.memory = estimator.network.memory
        least = smaller(beside(estimator.workload, self.pipelines))[-1]
        share = -(-least.microbatches // self.pipelines)
        self.need = needed_memory(least, cut, share) if numpy.isfinite(self.memory).any() else None
        self.flat = numpy.concatenate([places.reshape(-1), numpy.array(spare, dtype=numpy.int64)])
        self.refresh()

    def refresh(self) -> None:
        """Computes all sums anew for the present placement; this also removes the rounding errors of incremental
        sums."""
        places = self.places
        self.fixed, self.period = self.estimator.rows(places, self.cut)
        self.out = numpy.empty(places.shape)
        self.into = numpy.empty(places.shape)
        for stage in range(self.stages):
            square = self.sent[numpy.ix_(places[:, stage], places[:, stage])]
            self.out[:, stage] = square.sum(axis=1)
            self.into[:, stage] = square.sum(axis=0)
        self.rounds = self.update * numpy.maximum(self.out.max(axis=0), self.into.max(axis=0))
        # The passes of the present members: swaps count with them until the next refresh.
        self.hiding = self.estimator.hiding(places, self.cut, latencies=False)
        self.value = float(
            self.evaluate(self.fixed[None], self.period[None], self.rounds[None], self.out.mean(axis=0)[None])[0]
        )

    @property
    def places(self) -> Places:
        """The present placement, int [d, p]."""
        return self.flat[: self.slots].reshape(self.pipelines, self.stages)

    def evaluate(self, fixed: Matrix, period: Matrix, rounds: Matrix, mean: Matrix) -> Matrix:
        """float64 [b]: values of a batch. fixed, period: float64 [b, d]; rounds, mean: float64 [b, p]. Shares may be
        fractions of a microbatch here."""
        inverse = 1.0 / period
        compute = (self.total + (fixed * inverse).sum(axis=1)) / inverse.sum(axis=1)
        compute = numpy.maximum(compute, (fixed + period).max(axis=1))
        step = numpy.asarray(self.estimator.combine(compute, self.hiding.exposed(rounds).max(axis=1)))
        value: Matrix = step + TIE * (compute + (mean * self.update).mean(axis=1))
        return value

    def values_of_swaps(self, left: numpy.ndarray, right: numpy.ndarray) -> Matrix:
        """float64 [b]: value after swapping flat positions left[b] < slots and right[b] (a place or a spare)."""
        batch = len(left)
        index = numpy.arange(batch)
        places = self.places
        first, second = self.flat[left], self.flat[right]
        row_a, stage_a = numpy.divmod(left, self.stages)
        spare = right >= self.slots
        row_b, stage_b = numpy.divmod(numpy.where(spare, left, right), self.stages)
        same_row = row_a == row_b
        rows_a = places[row_a]
        rows_a[index, stage_a] = second
        inside = numpy.flatnonzero(same_row & ~spare)
        rows_a[inside, stage_b[inside]] = first[inside]
        rows_b = places[row_b]
        outside = numpy.flatnonzero(~same_row)
        rows_b[outside, stage_b[outside]] = first[outside]
        rows_b[same_row] = rows_a[same_row]
        fixed_ab, period_ab = self.estimator.rows(numpy.concatenate([rows_a, rows_b]), self.cut)
        fixed = numpy.repeat(self.fixed[None], batch, axis=0)
        period = numpy.repeat(self.period[None], batch, axis=0)
        fixed[index, row_b], period[index, row_b] = fixed_ab[batch:], period_ab[batch:]
        fixed[index, row_a], period[index, row_a] = fixed_ab[:batch], period_ab[:batch]
        rounds = numpy.repeat(self.rounds[None], batch, axis=0)
        mean = numpy.repeat(self.out.mean(axis=0)[None], batch, axis=0)
        if self.pipelines > 1:
            moved = numpy.flatnonzero((stage_a != stage_b) | spare)
            if len(moved):
                self._regroup(rounds, mean, moved, row_a, stage_a, first, second)
            both = numpy.flatnonzero((stage_a != stage_b) & ~spare)
            if len(both):
                self._regroup(rounds, mean, both, row_b, stage_b, second, first)
        values = self.evaluate(fixed, period, rounds, mean)
        if self.need is not None:
            short = self.memory[second] < self.need[stage_a]
            short |= ~spare & (self.memory[first] < self.need[stage_b])
            values[short] = numpy.inf
        return values

    def _regroup(
        self,
        rounds: Matrix,
        mean: Matrix,
        which: numpy.ndarray,
        rows: numpy.ndarray,
        stages: numpy.ndarray,
        gone: numpy.ndarray,
        come: numpy.ndarray,
    ) -> None:
        row, stage, old, new = rows[which], stages[which], gone[which], come[which]
        members = self.places.T[stage]
        index = numpy.arange(len(which))
        to_new, from_new = self.sent[members, new[:, None]], self.sent[new[:, None], members]
        out = self.out.T[stage] + to_new - self.sent[members, old[:, None]]
        into = self.into.T[stage] + from_new - self.sent[old[:, None], members]
        from_new[index, row] = 0.0
        to_new[index, row] = 0.0
        out[index, row] = from_new.sum(axis=1)
        into[index, row] = to_new.sum(axis=1)
        rounds[which, stage] = self.update[stage] * numpy.maximum(out.max(axis=1), into.max(axis=1))
        mean[which, stage] = out.mean(axis=1)

    def swap(self, left: int, right: int) -> None:
        """Swaps two flat positions and updates the sums."""
        places_before = self.flat[left], self.flat[right]
        self.flat[left], self.flat[right] = places_before[1], places_before[0]
        rows, stages = {left // self.stages}, {left % self.stages}
        if right < self.slots:
            rows.add(right // self.stages)
            stages.add(right % self.stages)
        places = self.places
        changed = numpy.array(sorted(rows))
        self.fixed[changed], self.period[changed] = self.estimator.rows(places[changed], self.cut)
        if len(stages) > 1 or right >= self.slots:
            for stage in stages:
                square = self.sent[numpy.ix_(places[:, stage], places[:, stage])]
                self.out[:, stage] = square.sum(axis=1)
                self.into[:, stage] = square.sum(axis=0)
                self.rounds[stage] = self.update[stage] * max(self.out[:, stage].max(), self.into[:, stage].max())
        else:
            stage = stages.pop()
            square = self.sent[numpy.ix_(places[:, stage], places[:, stage])]
            self.out[:, stage] = square.sum(axis=1)
            self.into[:, stage] = square.sum(axis=0)

    def anneal(
        self,
        random: numpy.random.Generator,
        batches: int,
        over: Callable[[], bool],
        heat: float,
        batch: int = 0,
    ) -> None:
        """Batches of random swaps; of each batch the best swap is made if the temperature accepts it. Ends with the
        best placement seen.

        over: whether the time is up. heat: the first temperature, as a part of the value; it falls to a hundredth of
        that.
        """
        if len(self.flat) < 2 or self.slots == 0:
            return
        batch = batch or int(numpy.clip(4 * len(self.flat), 32, 512))
        best_value, best_flat = self.value, self.flat.copy()
        quiet = 0
        for turn in range(batches):
            if turn % 8 == 0 and over():
                break
            temperature = heat * self.value * 0.01 ** (turn / max(batches, 1))
            left = random.integers(0, self.slots, batch)
            right = random.integers(0, len(self.flat), batch)
            worst = int((self.fixed + self.period * self.total / self.pipelines).argmax())
            left[: batch // 4] = worst * self.stages + random.integers(0, self.stages, batch // 4)
            slowest = int(self.rounds.argmax())
            left[batch // 4 : batch // 2] = (
                random.integers(0, self.pipelines, batch // 2 - batch // 4) * self.stages + slowest
            )
            usable = self.flat[left] != self.flat[right]
            left, right = left[usable], right[usable]
            flip = (right < left) & (right < self.slots)
            left, right = numpy.where(flip, right, left), numpy.where(flip, left, right)
            if not len(left):
                continue
            values = self.values_of_swaps(left, right)
            allowance = -temperature * numpy.log(random.random(len(values)) + 1e-300) if heat else 0.0
            gain = values - self.value - allowance
            pick = int(gain.argmin())
            if gain[pick] >= (0.0 if heat else -1e-12 * self.value):
                quiet += 1
                if quiet > 40 and not heat:
                    break
                continue
            quiet = 0
            self.swap(int(left[pick]), int(right[pick]))
            self.value = float(values[pick])
            if self.value < best_value * (1 - 1e-12):
                best_value, best_flat = self.value, self.flat.copy()
        self.flat = best_flat
        self.refresh()

    def found(self, origin: str) -> Found:
        """The present placement."""
        return Found(self.places.copy(), self.flat[self.slots :].tolist(), self.value, origin)


def crossover(first: Found, second: Found, periods: Matrix, random: numpy.random.Generator) -> tuple[Places, list[int]]:
    """A child that keeps about half of the first parent's pipelines as they are, with a preference for the faster ones;
    the other devices keep the order and the stages that they have in the second parent."""
    pipelines, stages = first.places.shape
    rank = numpy.argsort(numpy.argsort(periods + random.random(pipelines) * float(periods.std() + 1e-12)))
    kept = rank < max(1, pipelines // 2)
    child = numpy.full((pipelines, stages), -1, dtype=numpy.int64)
    child[kept] = first.places[kept]
    used = set(child[kept].reshape(-1).tolist())
    for stage in range(stages):
        waiting = [int(device) for device in second.places[:, stage] if int(device) not in used]
        for pipeline in numpy.flatnonzero(child[:, stage] < 0):
            if not waiting:
                break
            child[pipeline, stage] = waiting.pop(0)
            used.add(int(child[pipeline, stage]))
    everyone = [*second.places.reshape(-1).tolist(), *second.spare]
    left = [int(device) for device in everyone if int(device) not in used]
    for pipeline, stage in zip(*numpy.nonzero(child < 0), strict=True):
        child[pipeline, stage] = left.pop(0)
    return child, left
