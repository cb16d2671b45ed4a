"""How many microbatches a 1F1B pipeline has in flight at each stage: enough that no link makes the others wait.

What a stage has sent comes back after its own compute and that of the stages behind it, and after the links between
them, there and back. In a period the slowest of them carries or computes one microbatch. So the stages take a period
each at most, and the links what they take; as many more have to be in flight as fit into that, and one more for each
link, for a message may find its stage busy with another. More than that cost memory and gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from ..workloads.layers import beside, stage_memory
from ..workloads.workload import Workload
from .estimate import Cut, Estimator

SHORT = 0.02
"""This part of the pace is not worth more microbatches in memory."""

Depths = tuple[tuple[int, ...], ...]
"""[d][p]: microbatches that each stage of each pipeline may have in flight."""


def in_flight(estimator: Estimator, places: numpy.ndarray, cut: Cut, microbatches: Sequence[int]) -> Depths:
    """The depths of a placement, int [d, nodes], whose pipelines take so many microbatches of a step.

    At least those of plain 1F1B, for which the layers were cut; at most the pipeline's microbatches and what the
    device's memory holds. Empty where the schedule is none with a depth, and where plain 1F1B is deep enough.
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
