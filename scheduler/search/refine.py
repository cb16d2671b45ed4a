"""The last steps of a search for a few devices: small changes of a whole plan, each timed by the simulator.

The search before this one moves devices only: the cut follows their speeds, and the shares follow both. Here the cut,
the shares and the devices change one at a time, so that links count for the cut and the shares too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from math import comb

import numpy

from ..timing.candidate import Candidate, Places, Shape
from ..timing.estimate import IMPOSSIBLE, Cut, Estimator
from ..workloads.layers import beside, smaller
from .shapes import candidate, cut_for, needed_memory

MOST_DEVICES = 12
SLACK = 1.1
"""A change is simulated if its analytic time is at most this many times that of the best."""
MOST_STEPS = 40
ENUMERATED, CUTS, BEST = 5, 64, 30
"""Most devices for which every placement is tried; most cuts of the layers for which every cut is tried; placements of
a shape that are then simulated."""


def refined(
    estimator: Estimator,
    found: Candidate,
    measure: Callable[[Candidate], float],
    over: Callable[[], bool],
    sure: int = 0,
) -> Candidate:
    """The candidate after the best of all small changes, again and again until none helps.

    over: whether the time is up. ``sure`` steps are made even then.
    """
    best, value = found, measure(found)
    for turn in range(MOST_STEPS):
        if turn >= sure and over():
            break
        limit = best.seconds * SLACK
        step, least = best, value * (1 - 1e-4)
        for option in changes(estimator, best):
            if option.seconds > limit:
                continue
            seconds = measure(option)
            if seconds < least:
                step, least = option, seconds
            if turn >= sure and over():
                break
        if step is best:
            break
        best, value = step, least
    return best


def enumerated(estimator: Estimator, shapes: Sequence[Shape], over: Callable[[], bool]) -> list[Candidate]:
    """For each shape, the best of all its placements by the analytic time."""
    result: list[Candidate] = []
    for shape in shapes:
        found: list[Candidate] = []
        for places, spare in _placements(len(estimator.network), shape):
            if over():
                break
            for cut in _cuts(estimator, places, shape.chunks):
                found += _made(estimator, places, spare, cut, "of all placements")
            found = sorted(found, key=lambda option: option.seconds)[:BEST]
        result += found
    return result


def _placements(devices: int, shape: Shape) -> Iterator[tuple[Places, list[int]]]:
    """Every choice and order of devices, as (places, spares); the order of the pipelines does not count."""
    for order in permutations(range(devices), shape.devices):
        places = numpy.array(order).reshape(shape.pipelines, shape.nodes)
        if (numpy.diff(places[:, 0]) > 0).all():
            yield places, [device for device in range(devices) if device not in order]


def _cuts(estimator: Estimator, places: Places, chunks: int) -> list[Cut]:
    """Every cut where there are few; else the cut by speed, and those that differ from it by one moved boundary."""
    layers, stages = len(estimator.workload.layers), places.shape[1]
    if chunks == 1 and comb(layers - 1, stages - 1) <= CUTS:
        edges = combinations(range(1, layers), stages - 1)
        return [Cut(estimator.workload, tuple((a, b - 1) for a, b in pairwise((0, *inner, layers)))) for inner in edges]
    plain = cut_for(estimator, places, chunks)
    if plain is None:
        return []
    return [plain, *(Cut(estimator.workload, moved) for moved in _moved(plain.stages) if chunks == 1)]


def changes(estimator: Estimator, found: Candidate) -> Iterator[Candidate]:
    """Candidates that differ in one thing: a boundary between stages, one microbatch, two devices, or a pipeline."""
    cut, places, spare = found.cut, found.places, list(found.spare)
    pipelines, nodes = places.shape
    if cut.chunks == 1:
        for stages in _moved(cut.stages):
            yield from _made(estimator, places, spare, Cut(estimator.workload, stages), found.origin)
    for one in range(pipelines):
        for two in range(pipelines):
            if one != two and found.microbatches[one] > 1:
                share = list(found.microbatches)
                share[one], share[two] = share[one] - 1, share[two] + 1
                if _fits(estimator, places, cut, tuple(share)):
                    estimate = estimator.step(places, cut, share)
                    yield replace(found, microbatches=tuple(share), estimate=estimate)
    flat = places.reshape(-1)
    everyone = numpy.concatenate([flat, numpy.array(spare, dtype=numpy.int64)])
    for one in range(len(flat)):
        for two in range(one + 1, len(everyone)):
            changed = everyone.copy()
            changed[one], changed[two] = everyone[two], everyone[one]
            rows = changed[: len(flat)].reshape(pipelines, nodes)
            yield from _made(estimator, rows, changed[len(flat) :].tolist(), cut, found.origin)
    if pipelines > 1 and estimator.workload.pipelines is None:
        for gone in range(pipelines):
            left = [*spare, *places[gone].tolist()]
            yield from _made(estimator, numpy.delete(places, gone, axis=0), left, cut, found.origin)
    if len(spare) >= nodes and estimator.workload.pipelines is None and pipelines < estimator.workload.microbatches:
        rows = numpy.vstack([places, numpy.array(spare[:nodes])])
        yield from _made(estimator, rows, spare[nodes:], cut, found.origin)


def _moved(stages: tuple[tuple[int, int], ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Each cut in which one layer moves from a stage to its neighbour."""
    for at in range(len(stages) - 1):
        (first, middle), (_, last) = stages[at], stages[at + 1]
        for edge in (middle - 1, middle + 1):
            if first <= edge < last:
                yield (*stages[:at], (first, edge), (edge + 1, last), *stages[at + 2 :])


def _made(estimator: Estimator, places: Places, spare: list[int], cut: Cut, origin: str) -> Iterator[Candidate]:
    option = candidate(estimator, places, spare, cut, origin)
    if option is not None and _fits(estimator, places, cut, option.microbatches) and option.seconds < IMPOSSIBLE:
        yield option


def _fits(estimator: Estimator, places: Places, cut: Cut, share: tuple[int, ...]) -> bool:
    """Whether every device has the memory, with microbatches in pieces where need be."""
    memory = estimator.network.memory
    if not numpy.isfinite(memory).any():
        return True
    least = smaller(beside(estimator.workload, len(places)))[-1]
    pieces = estimator.workload.microbatch // least.microbatch
    return all(
        bool((needed_memory(least, cut, count * pieces) <= memory[row]).all())
        for row, count in zip(places, share, strict=True)
    )
