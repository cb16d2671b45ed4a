"""Cuts a stage's parameters into sections of whole parameters, as even as can be."""

from __future__ import annotations

from collections.abc import Sequence

from ....job.schema import Job

SECTIONS = 8
"""The number of sections of a stage that islands hold in pieces. It is the same for every island, because sections,
their rounds and their chains are the group's, whose members' islands differ; so an island of 2, 4 or 8 devices gives
each as many."""


def sections_of_a_stage(job: Job) -> int:
    """How many sections a stage is cut into, at most: a property of the job, on nodes of one device too."""
    return 1 if job.parallel.inside == "ddp" else SECTIONS


def even(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The indices of ``sizes``, dealt to ``count`` heaps as even as can be: the largest first, each to the smallest
    heap (the first of equal ones). In a heap indices ascend; empty heaps are at the end. The sizes alone decide."""
    heaps: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for index in sorted(range(len(sizes)), key=lambda one: (-sizes[one], one)):
        least = min(range(count), key=lambda one: (sums[one], len(heaps[one]), one))
        heaps[least].append(index)
        sums[least] += sizes[index]
    return [sorted(heap) for heap in heaps]
