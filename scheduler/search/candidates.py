"""The search over shapes and placements: constructions, annealed, crossed, and the finalists simulated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy

from ..errors import PlanError
from ..networks.blocks import WRITTEN_OUT
from ..networks.network import Network, components
from ..timing.candidate import Candidate, Places, Shape
from ..timing.compiled import STEP, is_loaded, ready
from ..timing.estimate import Estimator
from ..timing.seconds import candidate_seconds, reshared
from ..workloads.workload import Workload
from .annealing import Found, Searcher, crossover
from .many import best_of_many
from .refine import ENUMERATED, MOST_DEVICES, enumerated, refined
from .seeds import FEW, constructions, nearness
from .shapes import candidate, cut_for, shapes, why_nothing_fits
from .swaps import swap

SHAPES_SEARCHED, REFINED = 4, 6
"""Most shapes that are searched with more than refine.MOST_DEVICES devices, and that are refined with fewer."""
IMPROVED, BEFORE = ", improved by swaps", "as before"
SAMPLE_S = 1.0
"""Seconds of the search for the plan of a sample, from which the number of stages for thousands of devices follows; at
most a fifth of the time left."""
SURE = 6
"""Shapes for which one construction is simulated even where no time is left."""
SURE_SHAPES, SURE_STEPS = 3, 8
"""Of these, so many shapes are refined by so many steps, also where no time is left."""
SHORT, BATCHES = 0.15, 320
"""With many devices: the part of a run's swaps that a first run makes; batches of swaps in a run without compiled
loops."""
GENERATIONS, PATIENCE = 40, 7
"""Most children of the best shape, and how many in a row may be no improvement."""
SAME = 0.01
"""Placements whose steps differ by less than this part count as equally good; of these, the one in the order of names
wins."""


def best_candidate(
    network: Network,
    workload: Workload,
    deadline: float,
    seed: int,
    score: Callable[[Candidate], float] | None = None,
    watch: Callable[[Candidate], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    near: Found | None = None,
    estimator: Estimator | None = None,
) -> Candidate:
    """The search over shapes and placements. score: what to minimise among finished candidates (default seconds).

    watch: called with every new best candidate, for progress and for benchmarks. clock: `deadline` is a time of this
    clock. near: a placement to begin with. Where it can be used, the search does nothing after the deadline; without
    it, a minimum of work is done after the deadline too. estimator: of this network and workload; it remembers the
    placements that it has timed.
    """
    connected = components(network)
    if len(connected) > 1:
        # Nodes that can't reach each other can't train together: plan for the largest part, the others are spares.
        part = network.subset([network.names[device] for device in connected[0]])
        try:
            inner = best_candidate(part, workload, deadline, seed, score, watch, clock, _inside(near, connected[0]))
        except PlanError as error:
            raise PlanError(why_nothing_fits(network, workload)) from error
        lift = numpy.array(connected[0])
        outside = [device for others in connected[1:] for device in others]
        spare = tuple([int(lift[device]) for device in inner.spare] + outside)
        return replace(inner, places=lift[inner.places], spare=spare)
    ready(deadline - clock(), STEP)
    if len(network) > WRITTEN_OUT:
        return _best_of_many(estimator or Estimator(network, workload), deadline, seed, score, clock, near)
    estimator = estimator or Estimator(network, workload)
    kept = _Kept(score or (lambda found: candidate_seconds(estimator, found)), watch)

    def over() -> bool:
        return clock() > deadline

    wanted = shapes(len(network), workload)
    if near is not None and workload.pipelines in (None, len(near.places)):
        for chunks in sorted({shape.chunks for shape in wanted if shape.nodes == near.places.shape[1]}):
            kept.keep(_settle(estimator, near, chunks))
    sure = not kept.finished
    if sure or not over():
        starts = _starts(estimator, wanted, over, None if sure else near)
        if not starts:
            raise PlanError(why_nothing_fits(network, workload))
        random = numpy.random.default_rng(seed)
        if len(network) > FEW:
            _search_many(estimator, starts, kept, random, over)
        else:
            _search_few(estimator, starts, kept, random, deadline, clock, sure)
    if not kept.finished:
        raise PlanError(why_nothing_fits(network, workload))
    limit = min(value for value, _ in kept.finished) * (1 + SAME)
    # Among equals: fewer spares, then the order of names, so that equal devices always get the same places.
    chosen = min(
        (found for value, found in kept.finished if value <= limit),
        key=lambda found: (len(found.spare), found.origin != "in the order given", found.seconds),
    )
    return reshared(estimator, chosen)


def _best_of_many(
    estimator: Estimator,
    deadline: float,
    seed: int,
    score: Callable[[Candidate], float] | None,
    clock: Callable[[], float],
    near: Found | None,
) -> Candidate:
    """The best of the candidates for thousands of devices."""
    until = clock() + min(SAMPLE_S, (deadline - clock()) / 5)
    measure = score or (lambda found: candidate_seconds(estimator, found))

    def sampled(part: Network, less: Workload) -> Candidate:
        return best_candidate(part, less, until, seed, clock=clock)

    def over() -> bool:
        return clock() > deadline

    workload = estimator.workload
    made: list[Candidate] = []
    if near is not None and (workload.stages, workload.pipelines) in _wishes(near.places):
        made = [found for found in (_settle(estimator, near, 1),) if found is not None]
    if not made or not over():
        made += best_of_many(estimator, sampled, seed, over, made[0].cut if made else None)
    if not made:
        raise PlanError(why_nothing_fits(estimator.network, workload))
    return reshared(estimator, min(made, key=measure))


@dataclass
class _Kept:
    """The candidates that were measured. measure: the function to minimise; watch: called with each new best
    candidate."""

    measure: Callable[[Candidate], float]
    watch: Callable[[Candidate], None] | None
    finished: list[tuple[float, Candidate]] = field(default_factory=list)

    def keep(self, found: Candidate | None) -> None:
        if found is None:
            return
        value = self.measure(found)
        if self.watch is not None and (not self.finished or value < self.best()[0]):
            self.watch(found)
        self.finished.append((value, found))

    def best(self) -> tuple[float, Candidate]:
        """(the least value, its candidate)."""
        return min(self.finished, key=lambda pair: pair[0])

    def first_of_each_shape(self) -> list[Candidate]:
        """The best candidate of each shape, the best shape first."""
        first: dict[Shape, Candidate] = {}
        for _, option in sorted(self.finished, key=lambda pair: pair[0]):
            first.setdefault(option.shape, option)
        return list(first.values())


def _search_few(
    estimator: Estimator,
    starts: dict[Shape, list[Found]],
    kept: _Kept,
    random: numpy.random.Generator,
    deadline: float,
    clock: Callable[[], float],
    sure: bool,
) -> None:
    """Up to FEW devices: constructions are simulated, annealed and crossed; with up to MOST_DEVICES devices the best
    candidate of each shape is refined. sure: even where no time is left, a construction of each of SURE shapes is
    simulated, and the best are refined."""
    count = len(estimator.network)

    def over() -> bool:
        return clock() > deadline

    few, small = count <= MOST_DEVICES, count <= 4
    order = sorted(starts, key=lambda shape: starts[shape][0].value)[: None if few else SHAPES_SEARCHED]
    for rank, shape in enumerate(order):
        for at, first in enumerate(starts[shape][: 1 if rank else None]):
            # The simulation may prefer a construction whose analytic time is a little longer.
            if first.value < 1.1 * starts[shape][0].value and ((sure and rank < SURE and not at) or not over()):
                kept.keep(_settle(estimator, first, shape.chunks))
    if few and kept.finished:
        quarter = clock() + (deadline - clock()) / 4
        steps = SURE_STEPS if sure else 0
        for option in kept.first_of_each_shape()[:SURE_SHAPES]:
            kept.keep(refined(estimator, option, kept.measure, lambda: clock() > quarter, steps))
    population: dict[Shape, list[Found]] = {}
    batches = int(numpy.clip(8 * count if count > 16 else 5 * count, 24, 320))
    for rank, shape in enumerate(order):
        for start in starts[shape][: 2 if rank else 4]:
            if over():
                break
            found = _anneal(estimator, start, shape.chunks, random, batches, over, 0.0 if small else 0.01)
            population.setdefault(shape, []).append(found)
            kept.keep(_settle(estimator, found, shape.chunks))
        best = min(population.get(shape, starts[shape]), key=lambda found: found.value)
        kept.keep(_dropped(estimator, best, shape.chunks, over))
    if not small and population:
        _generations(estimator, population, kept, random, batches, over, GENERATIONS if count > 16 else 3)
    if few:
        # The best of each shape: the analytic time, which the search uses, may rank shapes in another order than the
        # simulation.
        half = (clock() + deadline) / 2
        if count <= ENUMERATED:
            for option in enumerated(estimator, order, lambda: clock() > half):
                kept.keep(option)
        for option in kept.first_of_each_shape()[:REFINED]:
            kept.keep(refined(estimator, option, kept.measure, over))


def _search_many(
    estimator: Estimator,
    starts: dict[Shape, list[Found]],
    kept: _Kept,
    random: numpy.random.Generator,
    over: Callable[[], bool],
) -> None:
    """Above FEW devices: short runs of swaps for a few shapes, long ones for the best of them, then crossovers."""
    order = sorted(starts, key=lambda shape: starts[shape][0].value)[:SHAPES_SEARCHED]
    kept.keep(_settle(estimator, starts[order[0]][0], order[0].chunks))
    population: dict[Shape, list[Found]] = {}
    for effort, shapes_left, each in ((SHORT, SHAPES_SEARCHED, 2), (1.0, 2, 1)):
        order = sorted(order, key=lambda shape: min(found.value for found in population.get(shape, starts[shape])))
        for shape in order[:shapes_left]:
            for start in sorted(population.get(shape, starts[shape]), key=lambda found: found.value)[:each]:
                if over():
                    break
                found = _anneal(estimator, start, shape.chunks, random, BATCHES, over, 0.01, effort)
                population.setdefault(shape, []).append(found)
            best = min(population.get(shape, starts[shape]), key=lambda found: found.value)
            if effort == 1.0 or over():
                kept.keep(_settle(estimator, best, shape.chunks))
                kept.keep(_dropped(estimator, best, shape.chunks, over))
    if population:
        _generations(estimator, population, kept, random, BATCHES, over, GENERATIONS)


def _generations(
    estimator: Estimator,
    population: dict[Shape, list[Found]],
    kept: _Kept,
    random: numpy.random.Generator,
    batches: int,
    over: Callable[[], bool],
    most: int,
) -> None:
    """Makes children of the best shape, until PATIENCE of them in a row are no improvement."""
    shape = min(population, key=lambda key: min(found.value for found in population[key]))
    quiet = 0
    for _ in range(most):
        if over() or shape.devices < 4 or quiet >= PATIENCE:
            break
        before = min(found.value for found in population[shape])
        child = _generation(estimator, population[shape], shape.chunks, random, batches, over)
        if child is not None and child.value < 1.02 * before:
            kept.keep(_settle(estimator, child, shape.chunks))
        quiet = 0 if child is not None and child.value < 0.999 * before else quiet + 1


def _wishes(places: Places) -> list[tuple[int | None, int | None]]:
    """The wishes (stages, pipelines) of a job that a placement with one stage a node fulfils."""
    pipelines, stages = places.shape
    return [(one, other) for one in (None, stages) for other in (None, pipelines)]


def _inside(near: Found | None, members: list[int]) -> Found | None:
    """The placement with its devices' indices in ``members``; None if it has a device that is not there."""
    if near is None or not set(near.places.reshape(-1).tolist()) <= set(members):
        return None
    number = {device: at for at, device in enumerate(members)}
    places = numpy.array([[number[int(device)] for device in row] for row in near.places])
    return replace(near, places=places, spare=[number[device] for device in near.spare if device in number])


def _starts(
    estimator: Estimator, wanted: list[Shape], over: Callable[[], bool], near: Found | None
) -> dict[Shape, list[Found]]:
    """For each shape that fits the memory, its constructions, the best first. With ``near``, its shape comes first, and
    there are as many shapes as the time allows."""
    if near is not None:
        wanted = sorted(wanted, key=lambda shape: (shape.pipelines, shape.nodes) != near.places.shape)
    workload = estimator.workload
    bits = max((layer.activation for layer in workload.layers[:-1]), default=1) * workload.microbatch
    distance = nearness(estimator.network, bits * workload.activation_bits)
    result: dict[Shape, list[Found]] = {}
    for shape in wanted:
        if result and (near is not None or len(estimator.network) > FEW) and over():
            break
        found: list[Found] = []
        made = constructions(estimator, shape.pipelines, shape.nodes, 0.0, distance)
        if near is not None and (shape.pipelines, shape.nodes) == near.places.shape:
            made.append((near.origin, near.places))
        for name, places in made:
            cut = cut_for(estimator, places, shape.chunks)
            if cut is None:
                continue
            used = set(places.reshape(-1).tolist())
            spare = [device for device in range(len(estimator.network)) if device not in used]
            found.append(Found(places, spare, Searcher(estimator, cut, places, spare).value, name))
        if found:
            result[shape] = sorted(found, key=lambda item: item.value)
    return result


def _anneal(
    estimator: Estimator,
    start: Found,
    chunks: int,
    random: numpy.random.Generator,
    batches: int,
    over: Callable[[], bool],
    heat: float,
    effort: float = 1.0,
) -> Found:
    cut = cut_for(estimator, start.places, chunks)
    if cut is None:
        return start
    searcher = Searcher(estimator, cut, start.places, start.spare)
    if is_loaded() and chunks == 1:
        swap(searcher, random, over, heat, effort)
    else:
        searcher.anneal(random, max(1, int(effort * batches)), over, heat)
        searcher.anneal(random, max(1, int(effort * batches)) // 4, over, 0.0)
    moved = searcher.value < start.value * (1 - 1e-3)
    return searcher.found(start.origin.removesuffix(IMPROVED) + IMPROVED) if moved else start


def _generation(
    estimator: Estimator,
    population: list[Found],
    chunks: int,
    random: numpy.random.Generator,
    batches: int,
    over: Callable[[], bool],
) -> Found | None:
    """One child of two parents, improved; it takes the worse parent's place if it is better."""
    population.sort(key=lambda found: found.value)
    first, second = random.choice(len(population), 2, replace=len(population) < 2)
    one, two = population[int(first)], population[int(second)]
    cut = cut_for(estimator, one.places, chunks)
    if cut is None:
        return None
    _, periods = estimator.rows(one.places, cut)
    places, spare = crossover(one, two, periods, random)
    child = _anneal(estimator, Found(places, spare, numpy.inf, "evolution"), chunks, random, batches, over, 0.005)
    worse = max(int(first), int(second))
    if child.value < population[worse].value:
        population[worse] = child
    return child


def _settle(estimator: Estimator, found: Found, chunks: int) -> Candidate | None:
    """The placement as a candidate, with the layers cut for its devices and with whole shares; None where no cut fits
    the memory."""
    cut = cut_for(estimator, found.places, chunks)
    return None if cut is None else candidate(estimator, found.places, found.spare, cut, found.origin)


def _dropped(estimator: Estimator, found: Found, chunks: int, over: Callable[[], bool]) -> Candidate | None:
    """The same placement without the pipelines that slow it down; None if every pipeline helps."""
    if estimator.workload.pipelines is not None:
        return None
    best, changed = found, False
    while len(best.places) > 1 and not over():
        cut = cut_for(estimator, best.places, chunks)
        if cut is None:
            return None
        searcher = Searcher(estimator, cut, best.places, best.spare)
        slow = numpy.argsort(-(searcher.fixed + searcher.period))[:3].tolist()
        busiest = int(searcher.rounds.argmax())
        slow += numpy.argsort(-numpy.maximum(searcher.out, searcher.into)[:, busiest])[:3].tolist()
        trials = []
        for pipeline in dict.fromkeys(slow):
            rest = numpy.delete(best.places, pipeline, axis=0)
            spare = [*best.spare, *best.places[pipeline].tolist()]
            trials.append(Found(rest, spare, Searcher(estimator, cut, rest, spare).value, found.origin))
        trial = min(trials, key=lambda item: item.value)
        if trial.value > best.value * (1 - SAME):
            break
        best, changed = trial, True
    return _settle(estimator, best, chunks) if changed else None
