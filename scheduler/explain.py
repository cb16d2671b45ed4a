"""What sets a plan's pace, in words, and what would help most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy

from .depth import Depths
from .devices import Matrix
from .estimate import Cut, Estimator
from .network import Network
from .tied import tied_group


def explain(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: Sequence[int],
    rounds: Matrix,
    compute: float,
    seconds: float,
    depths: Depths = (),
) -> tuple[str, str]:
    """(bottleneck, what would help most) of a placement, int [d, nodes], with so many microbatches in flight."""
    exchange = float(rounds.max())
    if (exchange > compute and estimator.workload.overlap) or exchange / estimator.workload.every > compute:
        bottleneck, pair = round_bottleneck(estimator, places, cut, rounds)
    else:
        bottleneck, pair = pipeline_bottleneck(estimator, places, cut, microbatches, depths)
    return bottleneck, best_help(estimator, places, cut, microbatches, pair, seconds)


def round_bottleneck(
    estimator: Estimator, places: numpy.ndarray, cut: Cut, rounds: Matrix
) -> tuple[str, tuple[int, int]]:
    """The slowest group's busiest node and its slowest path."""
    position = int(rounds.argmax())
    shared = cut.tied and position in (0, places.shape[1] - 1)
    group = tied_group(places) if shared else places[:, position]
    square = estimator.sent[numpy.ix_(group, group)]
    busiest = int(numpy.maximum(square.sum(axis=1), square.sum(axis=0)).argmax())
    outward = square[busiest].sum() >= square[:, busiest].sum()
    paths = square[busiest] if outward else square[:, busiest]
    other = int(paths.argmax())
    pair = (int(group[busiest]), int(group[other])) if outward else (int(group[other]), int(group[busiest]))
    return (
        f"the round of stage {position}{' and of what first and last stage share' if shared else ''} "
        f"({rounds[position]:.3g} s), most of all {_link(estimator.network, pair)}",
        pair,
    )


def constraints(
    estimator: Estimator, row: numpy.ndarray, cut: Cut, held: Sequence[int]
) -> list[tuple[float, str, tuple[int, int]]]:
    """(seconds a microbatch, words, devices) of everything that could set one pipeline's period. held: microbatches in
    flight at each stage."""
    network, workload = estimator.network, estimator.workload
    stages = numpy.tile(row, cut.chunks)
    found: list[tuple[float, str, tuple[int, int]]] = []
    ratio = 1 + workload.backward_ratio
    for position in range(cut.nodes):
        device = int(row[position])
        took = float(cut.work[position :: cut.nodes].sum()) * ratio / float(estimator.speed[device])
        found.append((took, f"compute of stage {position} on {network.names[device]}", (device, device)))
    trips = estimator.trips(stages, cut)
    for stage in range(len(stages) - 1):
        left, right = int(stages[stage]), int(stages[stage + 1])
        ahead = float(cut.elements[stage] * estimator.forward_bits[left, right] * estimator.per_bit[left, right])
        astern = float(cut.elements[stage] * estimator.backward_bits[left, right] * estimator.per_bit[right, left])
        found.append((ahead, f"activations over {_link(network, (left, right))}", (left, right)))
        found.append((astern, f"gradients over {_link(network, (right, left))}", (right, left)))
    if workload.schedule == "1f1b" and cut.chunks == 1:
        work = [float(cut.work[at]) * ratio / float(estimator.speed[int(stages[at])]) for at in range(len(stages))]
        for stage, trip in enumerate(trips):
            left, right = int(stages[stage]), int(stages[stage + 1])
            waiting = (sum(work[stage:]) + float(trips[stage:].sum())) / held[stage]
            words = f"the round trip behind stage {stage}, most of all {_link(network, (left, right))} ({trip:.3g} s)"
            found.append((waiting, words, (left, right)))
    return found


def pipeline_bottleneck(
    estimator: Estimator, places: numpy.ndarray, cut: Cut, microbatches: Sequence[int], depths: Depths
) -> tuple[str, tuple[int, int]]:
    """What sets the period of the pipeline that ends last."""
    fixed, period = estimator.rows(places, cut)
    slowest = int((fixed + numpy.asarray(microbatches) * period).argmax())
    held = depths[slowest] if depths else range(cut.nodes, 0, -1)
    took, words, pair = max(constraints(estimator, places[slowest], cut, held), key=lambda item: item[0])
    return f"pipeline {slowest}: {words}, {took:.3g} s a microbatch", pair


def best_help(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: Sequence[int],
    pair: tuple[int, int],
    seconds: float,
) -> str:
    """The best of a few single changes, each estimated: a faster device or link, or fewer bits."""
    network, workload = estimator.network, estimator.workload
    now = estimator.step(places, cut, microbatches).seconds
    sender, receiver = pair
    trials: list[tuple[float, str]] = []

    def trial(words: str, other: Estimator) -> None:
        took = other.step(places, Cut(other.workload, cut.stages, cut.chunks), microbatches).seconds
        trials.append((took / now * seconds, words))

    if sender == receiver:
        name = network.names[sender]
        trial(f"a device twice as fast in the place of {name}", _with_speed(network, workload, sender))
    else:
        trial(f"twice the bandwidth of {_link(network, pair)}", _with_link(estimator, pair))
    if workload.activation_bits > 4.5 and places.shape[1] > 1:
        fewer = replace(
            workload, activation_bits=workload.activation_bits / 2, gradient_bits=workload.gradient_bits / 2
        )
        trial("half the bits of activations and gradients", Estimator(network, fewer))
    if len(places) > 1:
        bits = workload.update_bits
        half = tuple(each / 2 for each in bits) if isinstance(bits, tuple) else bits / 2
        trial("half the bits of updates", Estimator(network, replace(workload, update_bits=half)))
        if not workload.overlap:
            trial("rounds that overlap the next step", Estimator(network, replace(workload, overlap=1)))
    took, words = min(trials, key=lambda item: item[0])
    if took > seconds * 0.99:
        return "no single change that was tried gains 1 %: the plan is balanced"
    return f"{words}: {took:.3g} s a step instead of {seconds:.3g} s"


def _with_speed(network: Network, workload: object, device: int) -> Estimator:
    name = network.names[device]
    return Estimator(network.with_speed({name: network.devices[device].tflops * 2}), workload)  # type: ignore[arg-type]


def _with_link(estimator: Estimator, pair: tuple[int, int]) -> Estimator:
    faster = Estimator(estimator.network, estimator.workload)
    for one, two in (pair, pair[::-1]):
        faster.per_bit[one, two] /= 2
        faster.sent = faster.sent.copy()
        faster.sent[one, two] /= 2
    return faster


def _link(network: Network, pair: tuple[int, int]) -> str:
    sender, receiver = pair
    rate, latency = network.rate[sender, receiver], network.latency[sender, receiver]
    names = f"{network.names[sender]} > {network.names[receiver]}"
    return f"{names} ({rate / 1e6:.4g} Mbit/s, {latency * 1e3:.3g} ms)"
