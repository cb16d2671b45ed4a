"""What sets a plan's pace, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from ..networks.devices import Matrix
from ..networks.network import Network
from ..timing.depth import Depths
from ..timing.estimate import Cut, Estimator
from ..timing.tied import tied_group


def bottleneck_of(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: Sequence[int],
    rounds: Matrix,
    compute: float,
    depths: Depths = (),
    *,
    waits: float | None = None,
) -> tuple[str, tuple[int, int]]:
    """(words, pair of device indices): what sets the pace of a placement, int [d, nodes]. depths: microbatches in
    flight. waits: seconds of the slowest round that no pass hides; None: all of it."""
    exchange = float(rounds.max()) if waits is None else waits
    if (exchange > compute and estimator.workload.overlap) or exchange / estimator.workload.every > compute:
        return round_bottleneck(estimator, places, cut, rounds)
    return pipeline_bottleneck(estimator, places, cut, microbatches, depths)


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
    found += _lines(estimator, stages, cut)
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


def _lines(estimator: Estimator, stages: numpy.ndarray, cut: Cut) -> list[tuple[float, str, tuple[int, int]]]:
    """(seconds, words, devices) of each device's own uplink and downlink, which carry its messages to, or from, both
    neighbours."""
    out: dict[int, float] = {}
    into: dict[int, float] = {}
    other: dict[int, int] = {}
    for stage in range(len(stages) - 1):
        left, right = int(stages[stage]), int(stages[stage + 1])
        ahead = float(cut.elements[stage] * estimator.forward_bits[left, right])
        astern = float(cut.elements[stage] * estimator.backward_bits[left, right])
        for sender, receiver, bits in ((left, right, ahead), (right, left, astern)):
            out[sender], into[receiver] = out.get(sender, 0.0) + bits, into.get(receiver, 0.0) + bits
            other.update({sender: receiver, receiver: sender})
    names = estimator.network.names
    found = []
    for device, bits in out.items():
        took = bits * float(estimator.upload_per_bit[device])
        found.append((took * (1 + 1e-9), f"the uplink of {names[device]}", (device, other[device])))
    for device, bits in into.items():
        took = bits * float(estimator.download_per_bit[device])
        found.append((took * (1 + 1e-9), f"the downlink of {names[device]}", (other[device], device)))
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


def _link(network: Network, pair: tuple[int, int]) -> str:
    sender, receiver = pair
    rate, latency = network.rate[sender, receiver], network.latency[sender, receiver]
    names = f"{network.names[sender]} > {network.names[receiver]}"
    shown = f"{rate / 1e9:.4g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.4g} Mbit/s"
    return f"{names} ({shown}, {latency * 1e3:.3g} ms)"
