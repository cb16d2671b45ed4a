"""Annealing one swap at a time for the seconds of a step: the evaluation of annealing.py, which works in batches,
written as loops for a compiler.

A swap changes a few hops of two pipelines, and one member's flows in each of two groups: O(pipelines). All functions
are called by `anneal`, which is compiled where numba is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy

from ..networks.devices import Matrix
from ..timing.compiled import compiled
from .annealing import TIE, Searcher

MOVES, PARTS, COLD = 1500, 12, 1e-3
"""Moves of a run for each device; parts of a run, after each of which the time is checked and the run continues from
the best placement; the last temperature, as a part of the first."""
WORST, SLOWEST, ALONG = 0.25, 0.5, 0.75
"""Thresholds on a random number in [0, 1): below WORST a move starts at the slowest pipeline, below SLOWEST in the
slowest group; above ALONG a move stays in its group, so that pipelines change and groups do not."""


class Links(NamedTuple):
    """The numbers that a pipeline's time depends on. float64 [n, n]: seconds a bit; seconds there and back; bits an
    element forward and backward; seconds of coding an element. float64 [n]: seconds a bit of the devices' own uplinks
    and downlinks; flops a second."""

    per_bit: Matrix
    trip: Matrix
    forward: Matrix
    backward: Matrix
    coding: Matrix
    up: Matrix
    down: Matrix
    speed: Matrix


def links_of(searcher: Searcher) -> Links:
    """The arrays of the searcher's estimator, contiguous."""
    one = searcher.estimator
    rest = (one.forward_bits, one.backward_bits, one.coding, one.upload_per_bit, one.download_per_bit, one.speed)
    return Links(
        *(numpy.ascontiguousarray(array, dtype=numpy.float64) for array in (one.per_bit, one.trip_latency, *rest))
    )


def swap(
    searcher: Searcher, random: numpy.random.Generator, over: Callable[[], bool], heat: float, effort: float = 1.0
) -> None:
    """A run of `effort` times MOVES moves for each device, at temperatures that fall from `heat`, a part of the
    value."""
    links, parts = links_of(searcher), PARTS
    moves = max(1, int(effort * MOVES * len(searcher.flat)) // parts)
    heats = [max(heat * COLD ** (at / parts), 1e-9) for at in range(parts + 1)]
    for hot, cold in pairwise(heats):
        if over():
            break
        anneal(searcher, moves, hot, cold, int(random.integers(1 << 31)), links)


def anneal(searcher: Searcher, moves: int, hot: float, cold: float, seed: int, links: Links | None = None) -> None:
    """Moves at temperatures that fall from `hot` to `cold`, parts of the value; ends with the best placement seen.

    Only for cuts of one chunk.
    """
    if len(searcher.flat) < 2 or searcher.slots == 0:
        return
    workload, cut = searcher.estimator.workload, searcher.cut
    overlap = min(workload.overlap, workload.every) if workload.overlap else 0
    need = numpy.zeros(searcher.stages) if searcher.need is None else searcher.need
    numbers = numpy.array(
        [workload.backward_ratio, searcher.total, float(workload.schedule == "gpipe"), overlap, workload.every, TIE]
    )
    loop = compiled(_swaps)
    loop(
        searcher.flat,
        searcher.pipelines,
        searcher.stages,
        *(links or links_of(searcher)),
        searcher.sent,
        searcher.memory,
        need,
        cut.work,
        cut.elements,
        searcher.update,
        searcher.hiding.left,
        searcher.hiding.hidden,
        numbers,
        moves,
        hot * searcher.value,
        cold * searcher.value,
        seed,
    )
    searcher.refresh()


def _swaps(
    flat: Any,
    pipelines: Any,
    stages: Any,
    per_bit: Any,
    trip: Any,
    forward_bits: Any,
    backward_bits: Any,
    coding: Any,
    up: Any,
    down: Any,
    speed: Any,
    sent: Any,
    memory: Any,
    need: Any,
    work: Any,
    elements: Any,
    update: Any,
    left_of: Any,
    hidden: Any,
    numbers: Any,
    moves: Any,
    hot: Any,
    cold: Any,
    seed: Any,
) -> None:
    ratio, total, gpipe, overlap, every, tie = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    slots, size = pipelines * stages, len(flat)
    numpy.random.seed(seed)
    fixed, period = numpy.zeros(pipelines), numpy.zeros(pipelines)
    out, into = numpy.zeros((stages, pipelines)), numpy.zeros((stages, pipelines))
    tops, means = numpy.zeros(stages), numpy.zeros(stages)
    new_out, new_into = numpy.zeros((2, pipelines)), numpy.zeros((2, pipelines))
    kept = flat.copy()
    for stage in range(stages):
        for row in range(pipelines):
            one = flat[row * stages + stage]
            for other in range(pipelines):
                two = flat[other * stages + stage]
                out[stage, row] += sent[one, two]
                into[stage, row] += sent[two, one]
    value, best = math.inf, math.inf
    temperature, factor = hot, (cold / hot) ** (1.0 / max(moves, 1)) if hot > 0 else 1.0
    worst, slowest = 0, 0
    rows, halves = numpy.zeros(2, numpy.int64), numpy.zeros(2, numpy.int64)
    old_fixed, old_period, old_tops, old_means = numpy.zeros(2), numpy.zeros(2), numpy.zeros(2), numpy.zeros(2)
    for move in range(-1, moves):
        temperature *= factor
        left, right, count_rows, count_halves = 0, 0, 0, 0
        if move >= 0:
            chance = numpy.random.random()
            left = int(numpy.random.random() * slots)
            if chance < WORST:
                left = worst * stages + int(numpy.random.random() * stages)
            elif chance < SLOWEST:
                left = int(numpy.random.random() * pipelines) * stages + slowest
            right = int(numpy.random.random() * size)
            if chance > ALONG:
                right = int(numpy.random.random() * pipelines) * stages + left % stages
            if left == right:
                continue
            first, second = flat[left], flat[right]
            outside = right >= slots
            stage_a, row_a = left % stages, left // stages
            stage_b, row_b = (-1, -1) if outside else (right % stages, right // stages)
            if memory[second] < need[stage_a] or (not outside and memory[first] < need[stage_b]):
                continue
            flat[left], flat[right] = second, first
            rows[0], count_rows = row_a, 1
            if not outside and row_b != row_a:
                rows[1], count_rows = row_b, 2
            if pipelines > 1 and stage_a != stage_b:
                halves[0], count_halves = stage_a, 1
                if not outside:
                    halves[1], count_halves = stage_b, 2
        else:
            count_rows = pipelines
        for index in range(count_rows):
            row = index if move < 0 else rows[index]
            base = row * stages
            fill, slow, slow_forward, slow_backward, ahead_most, astern_most, line = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            load, taken, code = 0.0, 0.0, 0.0  # of this stage, from the hop before it
            for stage in range(stages):
                here = flat[base + stage]
                forward = work[stage] / speed[here]
                both = forward * (1.0 + ratio) + code
                next_load, next_taken, next_code = 0.0, 0.0, 0.0
                if stage + 1 < stages:
                    there = flat[base + stage + 1]
                    count = elements[stage]
                    bits_ahead, bits_astern = count * forward_bits[here, there], count * backward_bits[here, there]
                    ahead, astern = bits_ahead * per_bit[here, there], bits_astern * per_bit[there, here]
                    code = count * coding[here, there]
                    both += code
                    next_code = code
                    fill += ahead + astern + trip[here, there]
                    load += bits_ahead * up[here]
                    taken += bits_astern * down[here]
                    next_load, next_taken = bits_astern * up[there], bits_ahead * down[there]
                    ahead_most, astern_most = max(ahead_most, ahead), max(astern_most, astern)
                fill += both
                slow, slow_forward = max(slow, both), max(slow_forward, forward)
                slow_backward = max(slow_backward, both - forward)
                line = max(line, max(load, taken))
                load, taken, code = next_load, next_taken, next_code
            if stages == 1:
                pace = slow
                fill = slow
            elif gpipe > 0:
                pace = max(slow_forward, ahead_most) + max(slow_backward, astern_most)
            else:
                pace = max(slow, max(ahead_most, astern_most))
            pace = max(pace, line)
            if move >= 0:
                old_fixed[index], old_period[index] = fixed[row], period[row]
            fixed[row], period[row] = fill - pace, pace
        for index in range(count_halves):
            stage = halves[index]
            gone, come, own = (first, second, row_a) if index == 0 else (second, first, row_b)
            top, mean, own_out, own_into = 0.0, 0.0, 0.0, 0.0
            for row in range(pipelines):
                if row == own:
                    continue
                member = flat[row * stages + stage]
                goes, comes = sent[member, come], sent[come, member]
                own_out += comes
                own_into += goes
                new_out[index, row] = out[stage, row] + goes - sent[member, gone]
                new_into[index, row] = into[stage, row] + comes - sent[gone, member]
                top = max(top, max(new_out[index, row], new_into[index, row]))
                mean += new_out[index, row]
            new_out[index, own], new_into[index, own] = own_out, own_into
            top, mean = max(top, max(own_out, own_into)), mean + own_out
            old_tops[index], old_means[index] = tops[stage], means[stage]
            tops[stage], means[stage] = top * update[stage], mean / pipelines
        if move < 0:
            for stage in range(stages):
                top, mean = 0.0, 0.0
                for row in range(pipelines):
                    top = max(top, max(out[stage, row], into[stage, row]))
                    mean += out[stage, row]
                tops[stage], means[stage] = top * update[stage], mean / pipelines
        paces, starts, late, last = 0.0, 0.0, 0.0, 0
        for row in range(pipelines):
            paces += 1.0 / period[row]
            starts += fixed[row] / period[row]
            late = max(late, fixed[row] + period[row])
            if fixed[row] + period[row] * total / pipelines > fixed[last] + period[last] * total / pipelines:
                last = row
        compute = max((total + starts) / paces, late)
        exchange, slope, group = 0.0, 0.0, 0
        for stage in range(stages):
            slope += means[stage] * update[stage] / stages
            for bucket in range(left_of.shape[1]):
                waits = tops[stage] * left_of[stage, bucket] - hidden[stage, bucket]
                if waits > exchange:
                    exchange, group = waits, stage
        step = max(compute, exchange / overlap) if overlap > 0 else compute + exchange / every
        new = step + tie * (compute + slope)
        if (
            move < 0
            or new <= value
            or (temperature > 0 and numpy.random.random() < math.exp((value - new) / temperature))
        ):
            value, worst, slowest = new, last, group
            for index in range(count_halves):
                stage = halves[index]
                for row in range(pipelines):
                    out[stage, row], into[stage, row] = new_out[index, row], new_into[index, row]
            if move >= 0 and stage_a == stage_b:
                stage = stage_a
                out[stage, row_a], out[stage, row_b] = out[stage, row_b], out[stage, row_a]
                into[stage, row_a], into[stage, row_b] = into[stage, row_b], into[stage, row_a]
            if value < best * (1 - 1e-12):
                best = value
                kept[:] = flat
            continue
        flat[left], flat[right] = first, second
        for index in range(count_rows):
            fixed[rows[index]], period[rows[index]] = old_fixed[index], old_period[index]
        for index in range(count_halves):
            tops[halves[index]], means[halves[index]] = old_tops[index], old_means[index]
    flat[:] = kept
