"""The search for the partition into groups of least published cost: annealing, and the paper's crossover repaired."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy

from ..networks.devices import Matrix
from ..networks.network import Network
from ..networks.regions import region_numbers
from ..plans import Plan
from ..search.seeds import chain, clusters, nearness
from ..timing.compiled import PUBLISHED, ready
from ..workloads.workload import Workload
from .dtfm import Dtfm, DtfmCost, Groups
from .paths import EXACT, short_path

SMOOTH = 0.05
"""Weight of the mean of the cheapest pairs beside the bottleneck: the search needs a slope on a plateau."""

HEAT = 0.004
"""Temperature at the start of a run of swaps, as a part of the cost."""
MOVES, ROUNDS, SLOPES, COLD = 6000, 24, (0.02, 0.1, 0.3), 1e-4
"""For compiled swaps: moves of a run for each place; runs in a row that may find nothing better; the weights of the
means that are tried, because the best one depends on the network; the last temperature, as a part of the cost."""
REORDER = 16
"""Accepted swaps between two exact solutions of the path's order."""


class _Annealer:
    """Swap annealing over partitions, the groups kept in their best path order.

    A swap touches two groups: at most four hops of the path and two sums. The bottleneck of a hop is bounded from below
    by every member's cheapest partner; the bound is vectorised over many swaps and nearly always exact. The order of
    the path is solved again after every REORDER accepted swaps, and a new best partition is checked with the exact
    cost.
    """

    def __init__(self, model: Dtfm, groups: Groups) -> None:
        self.model = model
        self.groups = groups.copy()
        self.reorder()

    def reorder(self) -> None:
        """Puts the groups in the order of the shortest path and sets the value."""
        count = len(self.groups)
        one, two = numpy.triu_indices(count, 1)
        between = numpy.zeros((count, count))
        between[one, two] = between[two, one] = self.pairs(self.groups[one], self.groups[two])
        _, order = short_path(between, None if count <= EXACT else list(range(count)))
        self.groups = self.groups[order]
        self.hops = between[order[:-1], order[1:]]
        self.data = self.model.data_seconds(self.groups)
        self.value = float(self.values(self.hops[None], self.data[None])[0])

    def pairs(self, left: Groups, right: Groups) -> Matrix:
        """float64 [b]: smoothed bound of the bottleneck between left[b] and right[b], int [b, k] each."""
        square = self.model.pipe[left[:, :, None], right[:, None, :]]
        # c devices with equal links need c partners: the last of them has at best the c-th cheapest.
        rows = numpy.take_along_axis(numpy.sort(square, axis=2), self.rank(left)[:, :, None], 2)[:, :, 0]
        columns = numpy.take_along_axis(numpy.sort(square, axis=1), self.rank(right)[:, None, :], 1)[:, 0]
        bound = numpy.maximum(rows.max(axis=1), columns.max(axis=1))
        smooth: Matrix = (1 - SMOOTH) * bound + SMOOTH / 2 * (rows.mean(axis=1) + columns.mean(axis=1))
        return smooth

    def rank(self, groups: Groups) -> numpy.ndarray:
        """int [b, k]: how many devices before this one in its group have the same links."""
        kind = self.model.kind[groups]
        same = kind[:, :, None] == kind[:, None, :]
        count: numpy.ndarray = numpy.tril(same, -1).sum(axis=2)
        return count

    @staticmethod
    def values(hops: Matrix, data: Matrix) -> Matrix:
        """float64 [b]: the smoothed total of a batch."""
        value: Matrix = 0.95 * data.max(axis=1) + 0.05 * data.mean(axis=1) + 2 * hops.sum(axis=1)
        return value

    def anneal(
        self,
        random: numpy.random.Generator,
        turns: int,
        heat: float,
        deadline: float,
        best: Callable[[Groups], None],
        batch: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Turns of a batch of swaps each; `best` is told every placement that may be a new best."""
        stages, size = self.groups.shape
        low, accepted, late = self.value, 0, 0.0
        began = clock()
        rows = numpy.arange(batch)
        for turn in range(turns):
            if turn % 8 == 0:
                now = clock()
                if now > deadline:
                    break
                # Where the deadline comes before the last turn, the temperature falls with the clock, so that the run
                # still ends cold. Otherwise the clock has no influence, and the same seed gives the same run.
                spent = (now - began) / max(deadline - began, 1e-9)
                late = spent if spent > turn / turns + 0.1 else 0.0
            temperature = heat * self.value * 0.02 ** max(turn / turns, late)
            one, two = random.integers(0, stages, batch), random.integers(0, stages - 1, batch)
            two = two + (two >= one)
            i, j = random.integers(0, size, batch), random.integers(0, size, batch)
            trial = numpy.repeat(self.groups[None], batch, axis=0)
            trial[rows, one, i], trial[rows, two, j] = self.groups[two, j], self.groups[one, i]
            hops = numpy.repeat(self.hops[None], batch, axis=0)
            near = numpy.concatenate([one - 1, one, two - 1, two])
            inside = numpy.flatnonzero((near >= 0) & (near < stages - 1))
            row, at = inside % batch, near[inside]
            hops[row, at] = self.pairs(trial[row, at], trial[row, at + 1])
            data = numpy.repeat(self.data[None], batch, axis=0)
            both = numpy.concatenate([rows, rows]), numpy.concatenate([one, two])
            group = trial[both]
            data[both] = 2 * self.model.data[group[:, :, None], group[:, None, :]].sum(axis=2).max(axis=1)
            values = self.values(hops, data)
            allowance = -temperature * numpy.log(random.random(batch) + 1e-300)
            gain = values - self.value - allowance
            # Swapping two devices with equal links (one region) changes nothing.
            gain[self.model.kind[self.groups[one, i]] == self.model.kind[self.groups[two, j]]] = 0.0
            pick = int(gain.argmin())
            if gain[pick] >= 0:
                continue
            self.groups = trial[pick].copy()
            self.hops, self.data, self.value = hops[pick], data[pick], float(values[pick])
            accepted += 1
            if accepted % REORDER == 0:
                self.reorder()
            if self.value < low * (1 - 1e-9):
                low = self.value
                best(self.groups)


def starts(network: Network, model: Dtfm, random: numpy.random.Generator) -> list[Groups]:
    """Starting partitions: regions dealt over the groups in stripes, near devices as groups, near devices as pipelines,
    random ones."""
    stages, size = model.stages, model.pipelines
    used = stages * size
    near = nearness(network, 8e8)
    order = chain(near, region_numbers(network).tolist())[:used]
    made: list[Groups] = []
    for width in (stages, 8, 4, 2, 1):
        if width > stages:
            continue
        groups = [[] for _ in range(stages)]  # type: list[list[int]]
        position = 0
        for first in range(0, stages, width):
            block = range(first, min(first + width, stages))
            for _ in range(size):
                for stage in block:
                    groups[stage].append(order[position])
                    position += 1
        made.append(numpy.array(groups))
    kept = sorted(order)
    inner = near[numpy.ix_(kept, kept)]
    made.append(numpy.array([kept[i] for cluster in clusters(inner, size) for i in cluster]).reshape(stages, size))
    rows = numpy.array([kept[i] for cluster in clusters(inner, stages) for i in cluster]).reshape(size, stages)
    made.append(rows.T.copy())
    made += [random.permutation(kept).reshape(stages, size) for _ in range(2)]
    unique: dict[bytes, Groups] = {groups.tobytes(): groups for groups in made}
    return list(unique.values())


def align(first: Groups, second: Groups) -> Groups:
    """The second partition with its groups in the order in which they share most devices with the first's."""
    overlap = numpy.array([[len(set(one.tolist()) & set(two.tolist())) for two in second] for one in first])
    order = [-1] * len(first)
    free = set(range(len(second)))
    for one, two in sorted(numpy.ndindex(overlap.shape), key=lambda pair: (-overlap[pair], pair)):
        if order[one] < 0 and two in free:
            order[one] = two
            free.discard(two)
    return second[order]


def five_points(first: Groups, second: Groups, random: numpy.random.Generator) -> Groups:
    """The paper's crossover after `align`: five devices of the second parent move to the group that they have in the
    first."""
    child = align(first, second).copy()
    home = {int(device): stage for stage, group in enumerate(first) for device in group}
    # A device may be a spare in one of the parents.
    everyone = numpy.array(sorted(home.keys() & set(child.reshape(-1).tolist())))
    for device in random.choice(everyone, min(5, len(everyone)), replace=False):
        stage, at = (int(found[0]) for found in numpy.nonzero(child == device))
        wanted = home[int(device)]
        if wanted == stage:
            continue
        # Repair at once: a device of the full group that does not belong there takes the place that became free.
        foreign = [place for place, other in enumerate(child[wanted]) if home.get(int(other)) != wanted]
        place = int(random.choice(foreign)) if foreign else int(random.integers(child.shape[1]))
        child[stage, at], child[wanted, place] = child[wanted, place], child[stage, at]
    return child


@dataclass
class _Best:
    """The cheapest partition found so far; ``watch`` is called with the cost of each better one."""

    model: Dtfm
    watch: Callable[[float], None] | None
    cost: DtfmCost | None = None

    def consider(self, groups: Groups) -> DtfmCost:
        """The exact cost of a partition."""
        cost = self.model.cost(groups)
        if self.cost is None or cost.total < self.cost.total * (1 - 1e-12):
            self.cost = cost
            if self.watch is not None:
                self.watch(cost.total)
        return cost


def search_dtfm(
    network: Network,
    stages: int,
    pipelines: int,
    deadline: float,
    seed: int,
    turns: int = 1200,
    watch: Callable[[float], None] | None = None,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.monotonic,
) -> DtfmCost:
    """The partition of least TOTAL that was found: constructions, annealed, then crossovers of the best, annealed.

    turns: batches of swaps in a run without compiled loops. rounds: with compiled loops, how many runs in a row may
    find nothing better before the search ends. clock: `deadline` is a time of this clock.
    """
    model = Dtfm(network, stages, pipelines)
    random = numpy.random.default_rng(seed)
    best = _Best(model, watch)
    population = [(best.consider(groups).total, groups) for groups in starts(network, model, random)]
    assert best.cost is not None
    if stages < 2 or pipelines < 2:
        return best.cost
    population.sort(key=lambda pair: pair[0])
    if ready(deadline - clock(), PUBLISHED):
        compiled = importlib.import_module(".loops", __package__)
        first = [groups for _, groups in population]
        _swap_compiled(compiled, best, len(network), first, random, deadline, rounds, clock)
    else:
        _swap_batches(best, population, random, deadline, turns, clock)
    return best.cost


def _swap_compiled(
    compiled: Any,
    best: _Best,
    devices: int,
    first: list[Groups],
    random: numpy.random.Generator,
    deadline: float,
    rounds: int,
    clock: Callable[[], float],
) -> None:
    """Runs of single swaps, from each construction, from random partitions, from crossovers and again from the best
    partition.

    A run ends with exact matchings and the exact path and goes on from these for a while, because a swap changes one
    pair at a time and finds neither. Runs grow while nothing better is found, and the search ends when long ones find
    nothing either.
    """
    model = best.model
    assert best.cost is not None
    stages, size = model.stages, model.pipelines
    data = 2 * model.data
    population: list[tuple[float, Groups]] = []
    moves, rate, quiet, turn = MOVES * stages * size, 0.0, 0, 0
    while clock() < deadline and quiet < rounds:
        before = best.cost.total
        population = sorted(population, key=lambda pair: pair[0])[:8]
        kind, long = turn % 4, 1
        slope, warmer = float(random.choice(SLOPES)), float(random.choice((0.3, 1.0, 3.0)))
        if kind == 0 and turn < 4 * len(first):
            groups, heat = first[turn // 4], HEAT
        elif kind == 1:
            groups, heat, long = random.permutation(devices)[: stages * size].reshape(stages, size), 3 * HEAT, 2
        elif kind == 3 and len(population) > 1:
            one, two = random.integers(0, len(population), 2)
            groups, heat = five_points(population[int(one)][1], population[int(two)][1], random), HEAT / 2
        else:
            groups, heat = best.cost.pipelines.T, HEAT
        heat *= warmer
        cost = model.cost(groups)
        for part, hot in ((0.8, heat), (0.2, HEAT / 8)):
            count = int(moves * part * long)
            if rate:  # a run that the deadline would cut gets fewer moves, so that it still ends cold
                count = min(count, int(rate * max(deadline - clock(), 0.0) * 0.9))
            if count < 1000 and rate:
                break
            began = clock()
            places = numpy.ascontiguousarray(cost.pipelines, dtype=numpy.int64)
            used = numpy.zeros(devices, dtype=bool)
            used[places] = True
            spare = numpy.flatnonzero(~used)
            hot, cold = hot * cost.total, COLD * cost.total
            number = int(random.integers(1, 1 << 40))
            compiled.anneal_published(data, model.pipe, places, spare, count, hot, cold, slope, number)
            cost = best.consider(places.T)
            rate = count / max(clock() - began, 1e-6)
        population.append((cost.total, cost.pipelines.T))
        turn += 1
        quiet = 0 if best.cost.total < before * (1 - 1e-9) else quiet + 1
        if quiet and quiet % 4 == 0:
            moves *= 2


def _swap_batches(
    best: _Best,
    population: list[tuple[float, Groups]],
    random: numpy.random.Generator,
    deadline: float,
    turns: int,
    clock: Callable[[], float],
) -> None:
    """The same without a compiler: batches of swaps at once.

    A run of swaps ends in one of several local minima, so the best construction gets many runs; between these, runs
    begin from the next best constructions and from children of the best partitions found.
    """

    def improved(groups: Groups, heat: float, length: int) -> tuple[float, Groups]:
        walker = _Annealer(best.model, groups)
        found = [(best.consider(groups).total, groups)]

        def told(new: Groups) -> None:
            total = best.consider(new).total
            if total < found[0][0]:
                found[0] = (total, new.copy())

        walker.anneal(random, length, heat, deadline, told, clock=clock)
        return found[0]

    first = [groups for _, groups in population[:3]]
    quiet = 0
    for generation in range(60):
        if clock() > deadline or quiet >= 12:
            break
        population = sorted(population, key=lambda pair: pair[0])[:8]
        before = population[0][0]
        if generation < 3 or generation % 2:
            groups = first[0] if generation < 6 or generation % 4 == 1 else first[(generation // 4) % len(first)]
            population.append(improved(groups, HEAT if generation == 1 else 2 * HEAT, turns))
        else:
            one, two = random.integers(0, len(population), 2)
            child = five_points(population[int(one)][1], population[int(two)][1], random)
            population.append(improved(child, HEAT, turns // 2))
        quiet = 0 if population[-1][0] < before * (1 - 1e-9) else quiet + 1


def plan_dtfm(network: Network, workload: Workload, deadline: float, seed: int) -> Plan:
    """The plan of least TOTAL: 8 x 8 unless the job says otherwise, with layers and shares as equal as possible."""
    stages = workload.stages or min(8, len(workload.layers), len(network))
    pipelines = workload.pipelines or min(len(network) // stages, workload.microbatches)
    found = search_dtfm(network, stages, max(1, pipelines), deadline, seed)
    layers, batch = len(workload.layers), workload.microbatches
    edges = [round(stage * layers / stages) for stage in range(stages + 1)]
    share = [batch // pipelines + (at < batch % pipelines) for at in range(pipelines)]
    names = network.names
    used = {int(device) for device in found.pipelines.reshape(-1)}
    return Plan(
        pipelines=tuple(tuple(names[int(device)] for device in row) for row in found.pipelines),
        stages=tuple((first, last - 1) for first, last in pairwise(edges)),
        microbatches=tuple(share),
        spares={
            name: f"the published cost takes {stages} x {pipelines} devices exactly"
            for index, name in enumerate(names)
            if index not in used
        },
        schedule=workload.schedule if workload.schedule != "interleaved" else "1f1b",
        why=f"the published cost is {found.total:.4g} s ({found.data:.4g} of data, 2 x {found.pipe:.4g} of pipelines)",
    )
