"""The search for thousands of devices: they are divided into neighbourhoods, each searched by itself, with one cut of
the layers for all.

The plan of a sample of the devices gives a number of stages, and numbers near it are tried on some hundred devices.
Devices of one region with lines of similar speed are neighbours;
the pipelines of a neighbourhood are annealed together. Of all neighbourhoods' pipelines, those train that the others
need not wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy

from ..networks.devices import Matrix
from ..networks.network import Network
from ..timing.candidate import Candidate, Places
from ..timing.compiled import is_loaded
from ..timing.estimate import Cut, Estimator
from ..workloads.layers import balance, held_by_stage, smaller
from ..workloads.workload import Workload
from .annealing import Searcher
from .seeds import stripes
from .shapes import candidate, needed_memory
from .swaps import swap

NEIGHBOURHOOD, SAMPLE, TRIED = 240, 120, 600
"""Devices of a neighbourhood; of the sample whose plan gives the number of stages that is tried first; and of the
sample on which numbers of stages are compared."""
EFFORT = 0.15
"""The part of a whole run of swaps that each neighbourhood gets."""
LEFT_OUT = (0.05, 0.15, 0.4)
"""The parts of the pipelines that are left out on trial: those with the slowest lines, without which rounds may be
faster."""


def best_of_many(
    estimator: Estimator,
    sampled: Callable[[Network, Workload], Candidate],
    seed: int,
    over: Callable[[], bool],
    cut: Cut | None = None,
) -> Iterator[Candidate]:
    """Candidates for thousands of devices; no candidate where none of the devices has the memory. sampled: plans a
    sample. cut: of the layers, where it is known already."""
    network, workload = estimator.network, estimator.workload
    random = numpy.random.default_rng(seed)
    if cut is None:
        part, less = _part_of(network, workload, SAMPLE, random)
        first = sampled(part, replace(less, pipelines=None, schedule=_plain(workload)))
        cut = _common_cut(network, workload, first.cut.nodes) or Cut(workload, first.cut.stages)
        if workload.stages is None:
            cut = _best_depth(network, workload, cut, random, over)
    places = _placed(network, workload, cut, random, over)
    if places is None:
        return
    whole_plan = next(_made(estimator, places, cut), None)
    if whole_plan is None:
        return
    yield whole_plan
    if whole_plan.seconds < 1.02 * float(whole_plan.estimate.pipelines.max()):
        return
    thin = numpy.maximum(1.0 / network.upload, 1.0 / network.download)[places].max(axis=1)
    order = numpy.argsort(thin, kind="stable")
    for left_out in LEFT_OUT:
        whole = len(order) - int(left_out * len(order))
        if workload.pipelines is None and 1 < whole < len(order) and not over():
            yield from _made(estimator, places[numpy.sort(order[:whole])], cut)


def _part_of(
    network: Network, workload: Workload, size: int, random: numpy.random.Generator
) -> tuple[Network, Workload]:
    """Some devices, drawn at random, and a workload with their part of the batch."""
    count = len(network)
    some = sorted(random.choice(count, min(size, count), replace=False).tolist())
    share = max(1, workload.microbatches * len(some) // count) * workload.microbatch
    return network.subset([network.names[device] for device in some]), replace(workload, batch=share)


def _best_depth(
    network: Network, workload: Workload, first: Cut, random: numpy.random.Generator, over: Callable[[], bool]
) -> Cut:
    """The cut with which some of the devices, placed as all will be, have the shortest step: one stage more or fewer
    than ``first``, or twice as many, and so on from the best. The number that a sample's plan prefers may leave half of
    all devices without a place, because they have too little memory."""
    part, less = _part_of(network, workload, TRIED, random)
    estimator, state = Estimator(part, less), random.bit_generator.state

    def seconds(cut: Cut) -> float:
        random.bit_generator.state = state
        places = _placed(part, less, cut, random, over)
        found = None if places is None else candidate(estimator, places, [], cut, "")
        return numpy.inf if found is None else found.seconds

    best, least, tried = first, seconds(first), {first.nodes}
    while True:
        before = best
        for nodes in (before.nodes + 1, before.nodes - 1, 2 * before.nodes):
            cut = None if nodes in tried or over() else _common_cut(network, workload, nodes)
            tried.add(nodes)
            if cut is not None and (took := seconds(cut)) < least:
                best, least = cut, took
        if best is before:
            return best


def _placed(
    network: Network, workload: Workload, cut: Cut, random: numpy.random.Generator, over: Callable[[], bool]
) -> Places | None:
    """The pipelines of all neighbourhoods that the others need not wait for, int [d, nodes]; None where no device has
    the memory."""
    least, nodes = smaller(workload)[-1], cut.nodes
    need = needed_memory(least, cut, -(-least.microbatches // max(1, len(network) // nodes)))
    rows: list[numpy.ndarray] = []
    for members in neighbourhoods(network, numpy.flatnonzero(network.memory >= need.min()), nodes):
        rows += _pipelines(network, workload, cut, members, need, random, over)
    if not rows:
        return None
    places = numpy.array(rows)
    fixed, period = Estimator(network, workload).rows(places, cut)
    most = workload.pipelines or workload.microbatches
    result: Places = places[useful(most, workload.microbatches, fixed, period)]
    return result


def _plain(workload: Workload) -> str:
    return "1f1b" if workload.schedule == "interleaved" else workload.schedule


def _made(estimator: Estimator, places: Places, cut: Cut) -> Iterator[Candidate]:
    used = set(places.reshape(-1).tolist())
    spare = [device for device in range(len(estimator.network)) if device not in used]
    found = candidate(estimator, places, spare, cut, "neighbourhoods")
    if found is not None:
        yield found


def _pipelines(
    network: Network,
    workload: Workload,
    cut: Cut,
    members: numpy.ndarray,
    need: Matrix,
    random: numpy.random.Generator,
    over: Callable[[], bool],
) -> list[numpy.ndarray]:
    """The pipelines of a neighbourhood: for each, int [nodes] of device indices in the whole network."""
    nodes = cut.nodes
    count = max(1, len(members) // nodes)
    if len(members) < nodes:
        return []
    part = network.subset([network.names[device] for device in members])
    batch = max(count, workload.microbatches * len(members) // len(network)) * workload.microbatch
    estimator = Estimator(part, replace(workload, batch=batch, schedule=_plain(workload)))
    slots = count * nodes
    by_speed = numpy.argsort(-part.tflops, kind="stable")
    starts = [by_speed[:slots].reshape(count, nodes), by_speed[:slots].reshape(nodes, count).T]
    starts += [stripes(list(range(len(members))), count, nodes, nodes)]
    by_memory = numpy.lexsort((-part.tflops, -part.memory))[:slots].reshape(nodes, count)
    hungry = numpy.argsort(numpy.argsort(-need, kind="stable"), kind="stable")
    starts.append(by_memory[hungry].T)
    best: Searcher | None = None
    for places in starts:
        if (part.memory[places] < need).any() and places is not starts[-1]:
            continue
        spare = sorted(set(range(len(members))) - set(places.reshape(-1).tolist()))
        searcher = Searcher(estimator, cut, numpy.ascontiguousarray(places), spare)
        if best is None or searcher.value < best.value:
            best = searcher
    assert best is not None
    if is_loaded():
        swap(best, random, over, 0.01, EFFORT)
    else:
        best.anneal(random, 40, over, 0.002, 256)
    return [members[row] for row in best.places if (part.memory[row] >= need).all()]


def neighbourhoods(network: Network, usable: numpy.ndarray, nodes: int) -> list[numpy.ndarray]:
    """Divides devices into neighbourhoods: one region, lines of similar speed, and where possible enough devices for a
    whole number of pipelines.

    usable: int [m], the devices that have the memory for some stage.
    """
    regions = numpy.array([device.region for device in network.devices])[usable]
    line = numpy.minimum(network.upload, network.download)[usable]
    found: list[numpy.ndarray] = []
    rest: list[numpy.ndarray] = [usable[:0]]
    for region in dict.fromkeys(regions.tolist()):
        mine = numpy.flatnonzero(regions == region)
        mine = usable[mine[numpy.argsort(-line[mine], kind="stable")]]
        whole = len(mine) // nodes * nodes
        found += _pieces(mine[:whole], nodes)
        rest.append(mine[whole:])
    return found + _pieces(numpy.concatenate(rest), nodes)


def _pieces(members: numpy.ndarray, nodes: int) -> list[numpy.ndarray]:
    """The devices in pieces of about NEIGHBOURHOOD, each but the last one a whole number of pipelines."""
    pipelines = len(members) // nodes
    count = max(1, round(pipelines * nodes / NEIGHBOURHOOD))
    edges = [round(at * pipelines / count) * nodes for at in range(count)]
    return [members[a:b] for a, b in pairwise([*edges, len(members)]) if b > a]


def useful(most: int, microbatches: int, fixed: Matrix, period: Matrix) -> numpy.ndarray:
    """int [k]: the pipelines that get at least one microbatch where all end at the same time; the step would wait for
    the others."""
    order = numpy.argsort(fixed + period, kind="stable")
    inverse = 1.0 / period[order]
    ends = (microbatches + numpy.cumsum(fixed[order] * inverse)) / numpy.cumsum(inverse)
    count = max(1, int(((fixed + period)[order] <= ends).sum()))
    kept: numpy.ndarray = numpy.sort(order[: min(count, most, microbatches)])
    return kept


def _common_cut(network: Network, workload: Workload, stages: int) -> Cut | None:
    """The cut for equal speeds at every position and the least memory for which there is a cut. None for 0 stages, or
    for more than there are layers or devices."""
    if not 1 <= stages <= min(len(workload.layers), len(network)):
        return None
    for part in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9):
        room = float(numpy.quantile(network.memory, part, method="higher"))
        for less in smaller(workload):
            held = held_by_stage(less, stages, 2 * stages)
            ranges = balance(less, [1.0] * stages, [room] * stages, held)
            if ranges is not None:
                return Cut(workload, ranges)
    return None
