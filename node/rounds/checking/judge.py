"""The judge: members and spares measure what each other's contributions do to the loss.

A judge takes some contributions c of a round, and for each contributor a few samples of the steps before the round. It
computes the loss of every such sample at g and at g + c / members, that is, with equal weight for all contributions.
(With the true weights, a slow node with a small share would score below the others.) So each contribution is measured
on its own samples and on the others', and on each sample it is compared with the other contributions: common causes
(hard samples, steps that are too long) cancel. Two numbers follow. ``own``: how much more c lowers the loss of its own
samples than the other contributions do; 0 if its sender did not train on them. ``held``: how much less c lowers the
loss of the samples that it has not seen. Both are in units of the round's usual value.

The idea is Gauntlet's (Lidin et al., "Incentivizing Permissionless Distributed Learning of LLMs", 2025), which scores
by held-out loss and by the difference to assigned data; here no node judges alone (membership/faults/judged.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, median_high
from typing import Protocol

import torch
from torch import Tensor

from .... import compress
from ....job.data.sampling import Position, assign, sample_ids
from ....proto import control_pb2
from ....scheduler import Plan
from ...context import NodeContext
from ...state.stage_state import StageState
from ..arithmetic.exchange import Exchange
from ..protocol.messages import Result, Sent
from ..protocol.payloads import blobs_of, segment_at

Placed = tuple[Tensor, Tensor, Tensor | None]
"""(inputs, targets, places) of some samples: see `Dataset.placed`."""

LIMIT = 2.0
"""Reported numbers are clipped to this magnitude, so that one odd sample proves nothing."""
FEWEST = 4
"""The fewest members of which one can be told from the others."""
MOST_MEMBERS, MOST_SAMPLES, MOST_STEPS = 8, 8, 16
"""The most contributions of a round, samples per contributor, and steps from which the samples come."""
NEAR = 0.1
"""Two contributions count as copies if their squared distance is below this fraction of the usual one."""
MOST_ROUNDS = 16
"""The most rounds for which the coordinator may order a look at one member."""


def alike(products: Tensor) -> list[set[int]]:
    """For each contribution, the set of others of which it is a copy, or which are copies of it. ``products``: the
    scalar products of all pairs, fp64 [n, n].

    Members train on different samples, so honest contributions differ, all by about as much: two that are much closer
    than usual (NEAR) have not been trained independently.
    """
    count = len(products)
    squares = products.diagonal()
    away = squares[:, None] + squares[None, :] - 2 * products
    usual = median(float(away[i, j]) for i in range(count) for j in range(i))
    return [{j for j in range(count) if j != i and float(away[i, j]) < NEAR * usual} for i in range(count)]


def scores(gains: Sequence[Sequence[float]], same: Sequence[set[int]] = ()) -> list[tuple[float, float]]:
    """``own`` and ``held`` of each contributor, from ``gains[i][k]``: by how much contribution i lowers the mean loss
    of the samples of contributor k. Empty if the round shows nothing: too few contributions, or no contribution lowers
    the loss of its own samples more.

    ``same``: from ``alike``. A contribution is not compared with its copies, which would hide its effect and each
    other's. The samples whose loss it lowers show who trained it.
    """
    count = len(gains)
    if count < FEWEST:
        return []
    near = [{i} | (same[i] if same else set()) for i in range(count)]
    own, rest = [], []
    for i, row in enumerate(gains):
        others = [k for k in range(count) if k not in near[i]]
        if len(others) < 2:
            others = [k for k in range(count) if k != i]
        own.append(row[i] - median(gains[j][i] for j in others))
        beside = {k: [gains[j][k] for j in others if j not in near[k]] for k in others}
        rest.append([row[k] - median(some) for k, some in beside.items() if some] or [0.0])
    unit = median_high(own)
    if not unit > 0:
        return []
    return [(_capped(one / unit), _capped(mean(away) / unit)) for one, away in zip(own, rest, strict=True)]


def _capped(value: float) -> float:
    return max(-LIMIT, min(LIMIT, value))


class Samples(Protocol):
    """The source of a judge's samples."""

    def placed(self, ids: Sequence[int]) -> Placed:
        """The samples with these numbers."""


@dataclass(frozen=True)
class Extent:
    """How many contributions of a round a judge takes, and how many samples per contributor."""

    members: int
    samples: int

    @property
    def cost(self) -> int:
        """How many samples are computed forward: all of them at g, and at g plus each contribution."""
        return (self.members + 1) * self.members * self.samples


def extent_of(members: int, budget: float) -> Extent:
    """The largest extent within a ``budget`` of samples computed forward; at least FEWEST contributions and one sample
    for each."""
    count = max(FEWEST, min(members, MOST_MEMBERS))
    while count > FEWEST and (count + 1) * count > budget:
        count -= 1
    return Extent(count, int(max(1, min(MOST_SAMPLES, budget // ((count + 1) * count)))))


@dataclass(frozen=True)
class Seat:
    """A place from which rounds of a view are judged: a member's, or that of a spare that follows."""

    context: NodeContext
    data: Callable[[], Samples]
    state: StageState
    plan: Plan
    position: Position
    base: int
    """The number of the last round before the view."""
    last_step: int
    """The run's."""
    spare: bool
    own_loop: bool
    """Whether a user's own training loop computes the steps."""


class Judge:
    """Judges the rounds of one place that has the whole model, in one view."""

    def __init__(self, seat: Seat) -> None:
        job, plan = seat.context.job, seat.plan
        self._seat, self._context = seat, seat.context
        self._interval, self._every, self._train = job.updates.interval, job.updates.period, job.train
        # A member's computation between two rounds, in samples forward (a backward pass counts as two).
        own = 3.0 * self._interval * job.train.batch / len(plan.pipelines)
        self._extent = extent_of(len(plan.pipelines), own)
        self._share = 1.0 if seat.spare else min(1.0, job.updates.judge * own / self._extent.cost)
        self._dice = random.SystemRandom()
        self._looked: dict[str, int] = {}

    def look(self, name: str, rounds: int) -> None:
        """Judge the member ``name`` in each of the next ``rounds`` rounds."""
        self._looked = {name: min(rounds, MOST_ROUNDS)}

    def round(self, exchange: Exchange, number: int, results: Sequence[Result], sent: Sent) -> None:
        """Judge a round whose result is about to be applied, at random or if a look was ordered.

        Changes nothing except, during the judging, the weights that the model uses. Raises ViewEnds.
        """
        names, me = exchange.plan.members, self._context.name
        counted = [i for i in range(len(names)) if all(i in one.contributors for one in results)]
        samples = self._samples(number)
        wanted = [i for i in counted if names[i] in self._looked and names[i] != me]
        self._looked = {name: left - 1 for name, left in self._looked.items() if left > 1}
        if not samples or len(counted) < FEWEST or not (wanted or self._dice.random() < self._share):
            return
        rest = [i for i in counted if i not in wanted]
        room = min(self._extent.members, len(counted)) - len(wanted)
        who = sorted(wanted + self._dice.sample(rest, max(0, room)))
        picked = {i: self._dice.sample(samples[i], min(self._extent.samples, len(samples[i]))) for i in who}
        if not all(picked.values()):
            return
        gains = self._gains(exchange, results, sent, picked)
        same = alike(self._products(exchange, results, sent, who))
        report = control_pb2.Scores(view=self._context.view, round=number)
        for i, (own, held) in zip(who, scores(gains, same), strict=False):
            if names[i] != me:
                report.scores.append(control_pb2.Score(node=names[i], own=own, held=held))
        if report.scores:
            self._context.report(control_pb2.Report(scores=report))

    # ---- inside ----------------------------------------------------------------------------

    def _samples(self, number: int) -> list[list[int]]:
        """For each pipeline the samples of the steps between this round and the one before; empty for the last rounds,
        which only send what is left."""
        position, train = self._seat.position, self._train
        begun = (position.step // self._interval + number - self._seat.base) * self._interval
        first = max(position.step, begun - self._every)
        if begun > self._seat.last_step or begun <= first:
            return []
        found: list[list[int]] = [[] for _ in self._seat.plan.pipelines]
        seed, count = self._context.job.run.seed, self._context.facts.drawn
        steps = range(first + 1, begun + 1)
        for step in steps if len(steps) <= MOST_STEPS else sorted(self._dice.sample(steps, MOST_STEPS)):
            ids = sample_ids(position.positions(step, train.batch), seed, count)
            shares = assign(ids, self._seat.plan.microbatches, train.microbatch_size)
            for mine, share in zip(found, shares, strict=True):
                mine.extend(ids[index] for index in share)
        return found

    def _gains(
        self, exchange: Exchange, results: Sequence[Result], sent: Sent, picked: dict[int, list[int]]
    ) -> list[list[float]]:
        """By how much each contribution, with equal weight, lowers the loss of each contributor's samples."""
        section, plan = exchange.section, exchange.plan
        data = [self._seat.data().placed(ids) for ids in picked.values()]
        weights = torch.empty_like(section.g)
        before = self._losses(section.g, data)
        gains = []
        for i in picked:
            weights.copy_(section.g)
            for result in results:
                part, one = plan.parts[result.part], sent[result.part, i]
                for start, blob in blobs_of(one.payload, one.sizes, part, plan.members[i]).items():
                    here = weights[segment_at(part, start)]
                    compress.add(blob, here, 1 / len(plan.members))
            gains.append([old - new for old, new in zip(before, self._losses(weights, data), strict=True)])
        return gains

    def _products(self, exchange: Exchange, results: Sequence[Result], sent: Sent, who: Sequence[int]) -> Tensor:
        """The scalar products of all pairs of contributions, fp64 [n, n], summed segment by segment."""
        plan = exchange.plan
        products = torch.zeros(len(who), len(who), dtype=torch.float64)
        for result in results:
            part = plan.parts[result.part]
            blobs = [
                blobs_of(sent[result.part, i].payload, sent[result.part, i].sizes, part, plan.members[i]) for i in who
            ]
            for start in blobs[0]:
                here = segment_at(part, start)
                length = here.stop - here.start
                rows = torch.zeros(len(who), length, device=exchange.section.g.device)
                for row, of_one in zip(rows, blobs, strict=True):
                    compress.add(of_one[start], row, 1.0)
                products += (rows @ rows.T).double().cpu()
        return products

    def _together(self, data: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
        """Groups of batches that are computed at once, since a few samples alone would leave most of a device idle."""
        count = max(1, MOST_SAMPLES // max(len(inputs) for inputs, _, _ in data))
        yield from (data[first : first + count] for first in range(0, len(data), count))

    def _losses(self, weights: Tensor, data: Sequence[Placed]) -> list[float]:
        """The mean loss of each batch with ``weights``, computed in fp32, because the differences are small."""
        state, device = self._seat.state, self._context.device
        model = state.models[0]
        state.use(weights)
        model.eval()
        found = []
        try:
            with torch.no_grad(), self._context.clock.span("judge"):
                for some in self._together(data):
                    inputs = torch.cat([one for one, _, _ in some]).to(device)
                    where = [places for _, _, places in some if places is not None]
                    made = model(inputs, torch.cat(where).to(device)) if where else model(inputs)
                    outputs = made.split([len(one) for one, _, _ in some])
                    for output, (_, targets, _) in zip(outputs, some, strict=True):
                        loss = model.loss_sum(output, targets.to(device))
                        found.append(float(loss) / model.target_count(targets))
        finally:
            model.train()
            state.use_local()
        self._context.pump(0.0)
        return found


def judge_of(seat: Seat) -> Judge | None:
    """The judge of a place in a view; None if the job wants none, or if no node can judge in this view."""
    if not seat.context.job.updates.judge or cannot_judge(seat.plan, seat.own_loop):
        return None
    return Judge(seat)


def cannot_judge(plan: Plan, own_loop: bool) -> str:
    """Why contributions cannot be judged in a view; empty if they can. ``own_loop``: a user's own training loop
    computes the steps."""
    if len(plan.stages) > 1:
        return f"the model is cut into {len(plan.stages)} stages, and no node alone can compute its loss"
    if len(plan.pipelines) < FEWEST:
        return f"{len(plan.pipelines)} members are too few to compare"
    if own_loop:
        return "the steps are computed by a training loop of one's own"
    return ""
