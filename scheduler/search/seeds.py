"""Placements from which a search starts (constructions): near devices as pipelines, near devices as groups, and
mixtures."""

from __future__ import annotations

import numpy

from ..networks.devices import Matrix
from ..networks.network import Network
from ..timing.candidate import Places
from ..timing.estimate import Estimator

FEW = 128
SETS = 16
"""Most devices for which several sets are tried where a shape leaves some out."""


def nearness(network: Network, bits: float) -> Matrix:
    """float64 [n, n]: seconds of a message of `bits` bits and its answer, the same in both directions."""
    with numpy.errstate(divide="ignore"):
        seconds = bits / network.rate + network.latency
    seconds = numpy.where(numpy.isfinite(seconds), seconds, 1e9)
    numpy.fill_diagonal(seconds, 0.0)
    return (seconds + seconds.T) / 2


def chain(near: Matrix, regions: list[int]) -> list[int]:
    """All devices in an order in which neighbours are near: region by region where regions have names, and after each
    device the nearest one that is left.

    Starts at the device that is farthest from all others on average, so that the chain does not start in the middle.
    """
    count = len(near)
    labels = numpy.array(regions)
    names = sorted(set(regions))
    if 1 < len(names) < count:
        members = [numpy.flatnonzero(labels == name) for name in names]
        between = numpy.array([[near[numpy.ix_(a, b)].mean() for b in members] for a in members])
        return [int(device) for block in _greedy_chain(between) for device in members[block]]
    return _greedy_chain(near)


def _greedy_chain(near: Matrix) -> list[int]:
    at = int(near.sum(axis=1).argmax())
    order, left = [at], numpy.ones(len(near), dtype=bool)
    left[at] = False
    while left.any():
        at = int(numpy.where(left, near[at], numpy.inf).argmin())
        left[at] = False
        order.append(at)
    return order


def clusters(near: Matrix, size: int) -> list[list[int]]:
    """Devices in clusters of at most `size`, each grown by the nearest free ones.

    A cluster grows from the free device with the nearest free neighbours; with more than FEW devices, from the free
    device that had the nearest neighbours when all were free.
    """
    left = numpy.ones(len(near), dtype=bool)
    result: list[list[int]] = []
    reach = numpy.partition(near, min(size, len(near)) - 1, axis=1)[:, :size].sum(axis=1)
    while left.any():
        free = numpy.flatnonzero(left)
        if len(near) <= FEW:
            inner = near[numpy.ix_(free, free)]
            count = min(size, len(free))
            centre = int(free[numpy.partition(inner, count - 1, axis=1)[:, :count].sum(axis=1).argmin()])
        else:
            centre = int(free[reach[free].argmin()])
        mine = free[numpy.argsort(near[centre, free], kind="stable")[:size]]
        left[mine] = False
        result.append([int(device) for device in mine])
    return result


def stripes(order: list[int], pipelines: int, stages: int, width: int) -> Places:
    """int [pipelines, stages]: the order, dealt over blocks of `width` stages. With width = stages each pipeline is a
    run of neighbours, with width = 1 each group is one, and between these each run is dealt over a few groups."""
    places = numpy.empty((pipelines, stages), dtype=numpy.int64)
    position = 0
    for first in range(0, stages, width):
        block = range(first, min(first + width, stages))
        for pipeline in range(pipelines):
            for stage in block:
                places[pipeline, stage] = order[position]
                position += 1
    return places


def constructions(
    estimator: Estimator, pipelines: int, stages: int, bits: float, near: Matrix | None = None
) -> list[tuple[str, Places]]:
    """(name, places) of starting placements for one shape, for each set of devices from ``taken``."""
    near = nearness(estimator.network, bits) if near is None else near
    made: list[tuple[str, Places]] = []
    for kept in taken(estimator.network, near, pipelines * stages):
        made += _dealt(estimator, pipelines, stages, near, kept)
    return made


def taken(network: Network, near: Matrix, slots: int) -> list[list[int]]:
    """Sets of devices to try where there are more devices than places: fast and near ones, and those with most memory.
    With up to SETS devices also the fastest, the ones nearest to all others, and those that remain when the device
    farthest from the others is removed, again and again."""
    count, speed = len(network), network.tflops
    reach = -near.mean(axis=1)
    scores = [speed / speed.max() + 0.25 * reach / max(float(-reach.min()), 1e-12)]
    if slots < count <= SETS:
        inside = numpy.ones(count, dtype=bool)
        gone = numpy.zeros(count)
        for turn in range(count - slots):
            far = numpy.where(inside, near[:, inside].sum(axis=1), -1.0)
            last = int(far.argmax())
            inside[last], gone[last] = False, turn - count
        scores += [speed, reach, gone]
    if slots < count and len(set(network.memory.tolist())) > 1:
        # Some shapes fit only on the devices with most memory; no other set is a start for these.
        scores.append(-numpy.lexsort((-speed, -network.memory)).argsort(kind="stable").astype(numpy.float64))
    sets = [tuple(sorted(numpy.argsort(-score, kind="stable")[:slots].tolist())) for score in scores]
    return [list(kept) for kept in dict.fromkeys(sets)]


def _dealt(
    estimator: Estimator, pipelines: int, stages: int, near: Matrix, kept: list[int]
) -> list[tuple[str, Places]]:
    """(name, places) of placements of exactly as many devices as there are places."""
    network, slots, speed = estimator.network, pipelines * stages, estimator.network.tflops
    inner = near[numpy.ix_(kept, kept)]
    regions = estimator.regions[kept].tolist()
    order = [kept[position] for position in chain(inner, regions)]
    made: list[tuple[str, Places]] = []
    widths = [width for width in (stages, 8, 4, 2, 1) if width <= stages and stages % width == 0]
    made += [
        (f"regions dealt over {width} stages", stripes(order, pipelines, stages, width))
        for width in dict.fromkeys(widths)
    ]
    named = numpy.array(sorted(kept)).reshape(pipelines, stages)
    made.append(("in the order given", named))
    by_speed = sorted(kept, key=lambda device: (-speed[device], device))
    if speed[by_speed[0]] > 1.05 * speed[by_speed[-1]] or len(set(network.memory[kept])) > 1:
        by_speed.sort(key=lambda device: (-round(float(speed[device]), 6), -network.memory[device], device))
        made.append(("fast devices as pipelines", numpy.array(by_speed).reshape(pipelines, stages)))
        made.append(("fast devices as stages", numpy.array(by_speed).reshape(stages, pipelines).T.copy()))
    if 1 < stages < slots and len(set(network.memory[kept])) > 1:
        large = sorted(kept, key=lambda device: (-network.memory[device], -speed[device], device))
        made.append(("large devices as stages", numpy.array(large).reshape(stages, pipelines).T.copy()))
    if 1 < stages < slots and slots <= 2048:
        rows = [kept[i] for cluster in clusters(inner, stages) for i in cluster]
        made.append(("clusters as pipelines", numpy.array(rows).reshape(pipelines, stages)))
        columns = [kept[i] for cluster in clusters(inner, pipelines) for i in cluster]
        made.append(("clusters as groups", numpy.array(columns).reshape(stages, pipelines).T.copy()))
    return made
