"""How many microbatches a 1F1B pipeline has in flight at each stage: enough to hide the links' round trips.

A microbatch comes back to a stage (as a gradient) after the compute of this stage and the later ones, and after the
links between them in both directions. A period is the time in which the slowest stage or link handles one microbatch.
The stages take at most one period each, which plain 1F1B's depth covers. The links' time needs as many more
microbatches as it has periods, and one more for each link, because a message may find its stage busy. Still more would
cost memory and gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from ..workloads.layers import beside, stage_memory
from ..workloads.workload import Workload
from .estimate import Cut, Estimator

SHORT = 0.02
"""Round trips shorter than this part of plain 1F1B's depth, both in periods, do not add microbatches."""

Depths = tuple[tuple[int, ...], ...]
"""[d][p]: microbatches that each stage of each pipeline may have in flight."""


def in_flight(estimator: Estimator, places: numpy.ndarray, cut: Cut, microbatches: Sequence[int]) -> Depths:
    """[d][p]: the depth at each stage of a placement, int [d, nodes]. microbatches: of a step, for each pipeline.

    At least the depths of plain 1F1B, for which the layers were cut; at most the pipeline's microbatches and as many as
    the device's memory holds. Empty where the schedule has no depth to choose, and where plain 1F1B's depths suffice.
    """
    workload = estimator.workload
    count = places.shape[1]
    if workload.schedule == "gpipe" or cut.chunks > 1 or count == 1:
        return ()
    _, period = estimator.rows(places, cut)
    plain = tuple(range(count, 0, -1))
    found = []
    for row, pace, share in zip(places, period, microbatches, strict=True):
        behind = numpy.append(numpy.cumsum(estimator.trips(row, cut)[::-1])[::-1], 0.0)
        depths = []
        for stage, least in enumerate(plain):
            links = float(behind[stage]) / float(pace)
            wanted = least if links <= SHORT * least else least + math.ceil(links) + count - 1 - stage
            memory = float(estimator.network.memory[int(row[stage])])
            depths.append(_fitting(beside(workload, len(places)), cut.stages[stage], least, min(wanted, share), memory))
        found.append(tuple(depths))
    return tuple(found) if any(row != plain for row in found) else ()


def _fitting(workload: Workload, layers: tuple[int, int], least: int, most: int, memory: float) -> int:
    """The most microbatches from `least` to `most` with which the layers fit the memory; `least` where none do."""
    empty = stage_memory(workload, *layers, 0)
    each = stage_memory(workload, *layers, 1) - empty
    return max(least, int(min(most, (memory - empty) / each if each else most)))
