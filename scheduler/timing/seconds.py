"""A candidate's seconds of a step: its simulated pipelines, its rounds, the lines that both use, and view changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy

from ..networks.devices import VIEW_CHANGE_S
from ..networks.network import Network
from ..workloads.layers import shares
from .candidate import Candidate
from .estimate import Cut, Estimator
from .exchange import found_rounds
from .lines import busiest_line, traffic
from .rounds import publisher_fractions
from .simulated import candidate_compute, ends_of, schedule_of

FEW_LINES = 1024
"""Largest network in which the bits of pipelines and rounds are added up for each line."""


def candidate_seconds(estimator: Estimator, found: Candidate, levels: bool | None = None) -> float:
    """Simulated seconds of a candidate's step, with publishers by bandwidth, and with the step's part of the time that
    view changes after its devices' evictions cost. ``levels``: as in ``found_rounds``."""
    return _undisturbed(estimator, found, levels) / (1 - lost_part(estimator.network, found.places))


def _undisturbed(estimator: Estimator, found: Candidate, levels: bool | None) -> float:
    exchange, split = found_rounds(estimator, found, levels)
    alone = float(estimator.combine(candidate_compute(estimator, found), exchange))
    if not _share_lines(estimator, found.places, found.cut, split):
        return alone
    groups = [found.places[:, position] for position in range(found.places.shape[1])]
    publishers = [publisher_fractions(estimator.network, estimator.sent, group) for group in groups]
    return max(alone, together(estimator, found.places, found.cut, found.microbatches, split, publishers)[0])


def reshared(estimator: Estimator, found: Candidate) -> Candidate:
    """The candidate with shares of the batch by the simulated speed of its pipelines, if a step gets shorter by it."""
    if len(found.places) < 2:
        return found
    best, now = found, candidate_seconds(estimator, found)
    for _ in range(3):
        ends = ends_of(estimator, best.places, best.cut, best.microbatches, schedule_of(estimator, best))
        if float(ends.max()) < 1.01 * float(ends.mean()):
            break
        fixed, _ = estimator.rows(best.places, best.cut)
        period = numpy.maximum(ends - fixed, 1e-12) / numpy.array(best.microbatches)
        share = shares(estimator.workload.microbatches, list(fixed), list(period))
        trial = replace(best, microbatches=share, estimate=estimator.step(best.places, best.cut, share))
        seconds = candidate_seconds(estimator, trial)
        if seconds > now * (1 - 1e-3):
            break
        best, now = trial, seconds
    return best


def together(
    estimator: Estimator,
    places: numpy.ndarray,
    cut: Cut,
    microbatches: Sequence[int],
    split: bool,
    publishers: Sequence[Sequence[float]] = (),
) -> tuple[float, str]:
    """(seconds, words) of the busiest line where rounds overlap with steps; 0 seconds where they take turns, and where
    rounds go in two levels (``split``), which are made to spare the lines."""
    if not _share_lines(estimator, places, cut, split):
        return 0.0, ""
    pattern = estimator.workload.pattern
    return busiest_line(estimator, traffic(estimator, places, cut, microbatches, pattern, publishers))


def _share_lines(estimator: Estimator, places: numpy.ndarray, cut: Cut, split: bool) -> bool:
    """Whether activations and rounds use the same lines at the same time, and the network is small enough to count
    it."""
    rounds = len(places) > 1 or cut.tied > 0
    return bool(estimator.workload.overlap) and rounds and not split and len(estimator.network) <= FEW_LINES


def lost_part(network: Network, places: numpy.ndarray) -> float:
    """The part of the time, below 1, that view changes after evictions of training devices cost."""
    lost = float(network.evictions[places].sum()) * VIEW_CHANGE_S / 3600
    return lost / (1 + lost)  # evictions are an hour of training; view changes add to that hour
