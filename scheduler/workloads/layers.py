"""Cuts the model's layers into stages (exactly, by dynamic programming) and the batch into shares (exactly, with a
heap)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice

import numpy

from ..errors import PlanError
from ..networks.devices import Matrix
from .apart import Elements, decoding_memory, spans
from .offload import APART
from .schedules import in_flight
from .workload import Layer, Workload

Ranges = tuple[tuple[int, int], ...]
Parts = dict[tuple[int, int], tuple[float, float, float]]
"""(first, last) -> (bytes of weights, elements kept for each microbatch in flight, other elements)."""


def prefix(values: Sequence[float]) -> Matrix:
    """float64 [n + 1]: entry k is the sum of the first k of n values."""
    return numpy.concatenate([[0.0], numpy.cumsum(numpy.asarray(values, dtype=numpy.float64))])


def stage_memory(workload: Workload, first: int, last: int, held: int) -> float:
    """Bytes that a device needs for layers first..last with `held` microbatches in flight.

    The sum of: frozen weights; parameters with gradient, moments, reference and residuals; the elements that the
    backward pass needs of each microbatch in flight; and what one microbatch takes beside them where it takes most
    (`stage_spans`).
    """
    weights = state_memory(workload, first, last) + 4.0 * sum(
        layer.frozen for layer in workload.layers[first : last + 1]
    )
    if workload.offload in APART:
        kept, others = next(islice(_apart(workload, first), last - first, None))
        layers, micro = workload.layers[first : last + 1], workload.microbatch
        boundary = workload.layers[first - 1].activation * micro if first else 0
        others += 2 * max(boundary, layers[-1].activation * micro)  # for sending and receiving
    else:
        found = stage_spans(workload.layers, first, workload.microbatch, workload.recompute)
        kept, others = next(islice(found, last - first, None))
    return weights + (held * kept + others) * workload.activation_bytes


def stage_spans(layers: Sequence[Layer], first: int, micro: int, recompute: bool) -> Iterator[Elements]:
    """What layers first..last of all ``layers`` take beside weights and gradients, for each last = first, ...

    A microbatch in flight has what the backward pass needs of every layer (with ``recompute`` a layer's input; the head
    is never computed again), and the stage's output. The backward pass frees it from the last layer on; where it is, it
    has the layer's insides, its working memory and the gradient of its output. A head that follows in the last layer is
    done before that layer begins.
    """
    kept = most = 0.0
    for at in range(first, len(layers)):
        layer = layers[at]
        inside = (layer.stored or 8 * layer.activation) * micro + layer.copies
        again = recompute and not _is_head(layers, at)
        working, decoding = layer.working * micro, decoding_memory(layer, micro, recompute)
        busy = max(inside + working, decoding) if recompute else inside + max(working, decoding)
        before = (layers[at - 1].activation if at else layer.entry) * micro
        passed = max(layer.activation * micro, before if layer.after else 0)  # the gradient of its output
        most = max(most, kept + busy + passed)
        kept += before if again else inside
        after = layer.after * micro + layer.after_copies
        most = max(most, kept + after + layer.after_working * micro)
        yield kept + after + layer.activation * micro, most - kept - after


def _is_head(layers: Sequence[Layer], at: int) -> bool:
    """Whether a layer is a head alone: the last one, whose output stays where it is."""
    return at == len(layers) - 1 > 0 and layers[at].activation <= 1 and not layers[at].after


def state_memory(workload: Workload, first: int, last: int) -> float:
    """Bytes that the trained parameters of layers first..last take, with what lies beside them."""
    each = workload.optimizer_bytes + workload.round_bytes
    if workload.block_bytes is None:
        return trained(workload, first, last) * each
    count = len(workload.layers)
    blocks = sum(workload.layers[at].parameters for at in range(first, last + 1) if 0 < at < count - 1)
    return (trained(workload, first, last) - blocks) * each + blocks * workload.block_bytes


def _apart(workload: Workload, first: int) -> Iterator[Elements]:
    """`apart.spans` of a workload whose weights lie in main memory."""
    passing = workload.block_bytes is not None
    micro, again = workload.microbatch, workload.recompute
    return spans(workload.layers, first, micro, recompute=again, passing=passing, tied=workload.tied)


def trained(workload: Workload, first: int, last: int) -> int:
    """Trained parameters of layers first..last; a matrix that the first and the last layer share counts once."""
    layers = workload.layers
    shared = workload.tied and first == 0 and last == len(layers) - 1 and len(layers) > 1
    both = min(layers[0].parameters, layers[-1].parameters) if shared else 0
    return sum(layer.parameters for layer in layers[first : last + 1]) - both


def beside(workload: Workload, pipelines: int) -> Workload:
    """The workload of one of so many pipelines: a single pipeline has no rounds, and so no memory for them."""
    return workload if pipelines > 1 or not workload.round_bytes else replace(workload, round_bytes=0.0)


def smaller(workload: Workload) -> list[Workload]:
    """The workload, and the same workload with each smaller microbatch that divides its own, in falling order: smaller
    ones need less memory."""
    sizes = [size for size in range(workload.microbatch, 0, -1) if workload.microbatch % size == 0]
    return [workload, *(replace(workload, microbatch=size) for size in sizes[1:])]


def balance(workload: Workload, speeds: Sequence[float], memory: Sequence[float], held: Sequence[int]) -> Ranges | None:
    """The contiguous layer ranges that make the slowest stage fastest; None if no cut fits the memory.

    speeds: of each stage, in any unit of flops a second; memory: bytes; held: microbatches in flight.
    Among equally fast cuts the one whose sum of squared stage times is least, then the one with earlier cuts, so the
    answer does not depend on rounding of equal devices.
    """
    count, stages = len(workload.layers), len(speeds)
    if stages > count:
        return None
    flops = prefix([layer.flops for layer in workload.layers]).tolist()
    fits = _fits(workload, memory, held)
    total = flops[-1] or 1.0
    scale = sum(speeds)
    best: list[list[tuple[float, float]]] = [[(math.inf, math.inf)] * (count + 1) for _ in range(stages + 1)]
    cut = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = (0.0, 0.0)
    for stage in range(stages):
        for end in range(stage + 1, count - (stages - stage - 1) + 1):
            for begin in range(end - 1, stage - 1, -1):
                worst, squares = best[stage][begin]
                time = round((flops[end] - flops[begin]) / total * scale / speeds[stage], 9)
                if time > best[stage + 1][end][0]:
                    break  # a longer stage is slower still
                if math.isinf(worst) or not fits(stage, begin, end - 1):
                    continue
                value = (max(worst, time), squares + time * time)
                if value < best[stage + 1][end]:
                    best[stage + 1][end] = value
                    cut[stage + 1][end] = begin
    if math.isinf(best[stages][count][0]):
        return None
    ranges: list[tuple[int, int]] = []
    end = count
    for stage in range(stages, 0, -1):
        begin = cut[stage][end]
        ranges.append((begin, end - 1))
        end = begin
    return tuple(reversed(ranges))


def _fits(workload: Workload, memory: Sequence[float], held: Sequence[int]) -> Callable[[int, int, int], bool]:
    """A function (stage, first, last) -> whether the stage's memory holds layers first..last: ``stage_memory``, from
    prefix sums."""
    if all(math.isinf(value) for value in memory):
        return lambda stage, first, last: True
    moved, apart = workload.optimizer_bytes + workload.round_bytes, workload.offload in APART
    find = partial(_parts_apart, workload.block_bytes) if apart else _parts
    parts: Parts = find(workload.tied, workload.layers, workload.microbatch, workload.recompute, moved)
    each = workload.activation_bytes

    def fits(stage: int, first: int, last: int) -> bool:
        weights, inside, beside = parts[first, last]
        return weights + (held[stage] * inside + beside) * each <= memory[stage] * (1 + 1e-12)

    return fits


@lru_cache(maxsize=64)
def _parts(tied: bool, layers: tuple[Layer, ...], micro: int, recompute: bool, moved: float) -> Parts:
    """(first, last) -> (bytes of weights, elements kept for each microbatch in flight, other elements)."""
    found: Parts = {}
    for first in range(len(layers)):
        weights = 0.0
        for last, (kept, others) in enumerate(stage_spans(layers, first, micro, recompute), first):
            weights += layers[last].parameters * moved + 4.0 * layers[last].frozen
            found[first, last] = weights, kept, others
    return _with_one_matrix(found, tied, layers, moved)


def _with_one_matrix(found: Parts, tied: bool, layers: Sequence[Layer], moved: float) -> Parts:
    """``found``, where a stage of all layers has the matrix once that the first and the last layer share."""
    if tied and len(layers) > 1:
        weights, kept, others = found[0, len(layers) - 1]
        both = min(layers[0].parameters, layers[-1].parameters)
        found[0, len(layers) - 1] = weights - both * moved, kept, others
    return found


@lru_cache(maxsize=64)
def _parts_apart(
    of_blocks: float | None, tied: bool, layers: tuple[Layer, ...], micro: int, recompute: bool, moved: float
) -> Parts:
    """As `_parts`, where the weights lie in main memory. ``of_blocks``: bytes a parameter of a block takes; None: as
    many as others."""
    found: Parts = {}
    for first in range(len(layers)):
        weights, boundary = 0.0, layers[first - 1].activation * micro if first else 0
        passes = spans(layers, first, micro, recompute=recompute, passing=of_blocks is not None, tied=tied)
        for last, (kept, others) in enumerate(passes, first):
            layer = layers[last]
            block = of_blocks if 0 < last < len(layers) - 1 else None
            weights += layer.parameters * (moved if block is None else block) + 4.0 * layer.frozen
            found[first, last] = weights, kept, others + 2 * max(boundary, layer.activation * micro)
    return _with_one_matrix(found, tied, layers, moved)


def held_by_stage(workload: Workload, stages: int, microbatches: int, chunks: int = 1) -> list[int]:
    """Microbatches in flight at each stage under the workload's schedule, with `chunks` stages a node."""
    if chunks > 1:
        nodes = stages // chunks
        each = [in_flight("interleaved", node, nodes, microbatches, chunks) for node in range(nodes)]
        return [-(-each[stage % nodes] // chunks) for stage in range(stages)]
    kind = workload.schedule if workload.schedule != "interleaved" else "1f1b"
    return [in_flight(kind, stage, stages, microbatches) for stage in range(stages)]


def shares(microbatches: int, fixed: Sequence[float], period: Sequence[float]) -> tuple[int, ...]:
    """Microbatches of each pipeline so that the last one to end does so as early as possible: pipeline d takes fixed[d]
    + m * period[d] seconds.

    Every pipeline gets at least one; they add up to `microbatches` exactly. Of equal pipelines the first ones get the
    remainder. Giving each microbatch to the pipeline that would end first is optimal, because the end times only grow.
    """
    count = len(period)
    if count > microbatches:
        raise PlanError(f"{count} pipelines can't be: a batch has {microbatches} microbatches")
    share = _certain(microbatches, fixed, period)
    ends = [(round(fixed[d] + (share[d] + 1) * period[d], 12), d) for d in range(count)]
    heapq.heapify(ends)
    for _ in range(microbatches - sum(share)):
        _, d = heapq.heappop(ends)
        share[d] += 1
        heapq.heappush(ends, (round(fixed[d] + (share[d] + 1) * period[d], 12), d))
    return tuple(share)


def _certain(microbatches: int, fixed: Sequence[float], period: Sequence[float]) -> list[int]:
    """A lower bound on each pipeline's microbatches, from which the heap begins: one fewer than where all end at the
    same time, and at least 1."""
    share, active = [1] * len(period), list(range(len(period)))
    while active:
        paces = sum(1.0 / period[d] for d in active)
        end = (microbatches - len(period) + len(active) + sum(fixed[d] / period[d] for d in active)) / paces
        left = [d for d in active if end > fixed[d] + period[d]]
        if len(left) == len(active):
            for d in active:
                share[d] = max(1, math.floor((end - fixed[d]) / period[d]) - 1)
            break
        active = left
    return share
