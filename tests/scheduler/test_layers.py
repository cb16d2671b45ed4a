"""Shares of a batch and the memory of stages: what is worked out quickly is what the plain way gives."""

import heapq
from dataclasses import replace

import numpy
import pytest

from farflung.scheduler import Layer, Workload
from farflung.scheduler.workloads.layers import balance, shares, stage_memory


def one_by_one(microbatches: int, fixed: list[float], period: list[float]) -> tuple[int, ...]:
    """Each microbatch to the pipeline that would end first with it."""
    share = [1] * len(period)
    ends = [(round(fixed[d] + 2 * period[d], 12), d) for d in range(len(period))]
    heapq.heapify(ends)
    for _ in range(microbatches - len(period)):
        _, d = heapq.heappop(ends)
        share[d] += 1
        heapq.heappush(ends, (round(fixed[d] + (share[d] + 1) * period[d], 12), d))
    return tuple(share)


def test_shares_are_those_of_one_microbatch_after_another() -> None:
    random = numpy.random.default_rng(0)
    for turn in range(300):
        count = int(random.integers(1, 9))
        batch = int(random.integers(count, 80))
        if turn % 3:
            fixed, period = 10 ** random.uniform(-3, 2, count), 10 ** random.uniform(-2, 1, count)
        else:  # many ends fall together
            fixed, period = random.integers(0, 20, count) * 1.0, random.integers(1, 5, count) * 1.0
        assert shares(batch, fixed.tolist(), period.tolist()) == one_by_one(batch, fixed.tolist(), period.tolist())


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_cut_fits_where_the_memory_of_its_stages_does(recompute: bool, adapters: bool) -> None:
    random = numpy.random.default_rng(1)
    layers = tuple(
        Layer(f"l{at}", int(random.integers(1e6, 9e6)), 1e9, int(random.integers(1e4, 1e6)), working=5000 * at)
        for at in range(6)
    )
    if adapters:
        layers = tuple(replace(one, temporary=600_000, decoding=4000 * at) for at, one in enumerate(layers))
        last = replace(layers[-1], after=70_000, after_copies=9000, after_working=400_000)
        layers = (replace(layers[0], entry=30_000), *layers[1:-1], last)
    workload = replace(Workload(layers, 8), recompute=recompute)
    for first in range(6):
        need = [stage_memory(workload, 0, first, 2), stage_memory(workload, first + 1, 5, 1)] if first < 5 else []
        if need:
            assert balance(workload, [1.0, 1.0], need, [2, 1]) is not None
            found = balance(workload, [1.0, 1.0], [need[0] * 0.999, need[1] * 0.999], [2, 1])
            assert found != ((0, first), (first + 1, 5))
