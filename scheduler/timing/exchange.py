"""How long a plan's or a candidate's rounds take, at each position, and whether they go in two levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from ..networks.devices import Matrix
from ..networks.network import NOISE
from ..networks.regions import MOST_TOGETHER, cut_regions
from ..plans import Plan
from .candidate import Candidate
from .early import Hiding
from .estimate import Cut, Estimator
from .rounds import publisher_fractions, round_seconds, site_seconds
from .tied import stage_bits, tied_group, tied_seconds


def plan_rounds(estimator: Estimator, places: numpy.ndarray, cut: Cut, plan: Plan) -> Matrix:
    """float64 [nodes]: seconds of each position's round, with the plan's own publishers and levels."""
    pattern = estimator.workload.pattern
    if pattern == "two_level" or plan.regions:
        pattern = "two_level" if plan.regions else "publishers"
    return _rounds(estimator, places, cut, pattern, plan.publishers)


def plan_hiding(estimator: Estimator, places: numpy.ndarray, cut: Cut, plan: Plan) -> Hiding:
    """What of these rounds the last backward passes hide."""
    return estimator.hiding(places, cut, _pattern(estimator, bool(plan.regions)))


def found_rounds(estimator: Estimator, found: Candidate, levels: bool | None = None) -> tuple[float, bool]:
    """(seconds that a step of a candidate waits for its slowest round after its passes, or beside them with an overlap;
    whether it goes in two levels); see rounds_of. Computed once and kept."""
    key = (found.places.shape, found.places.tobytes(), found.cut.stages, levels)
    if key not in estimator.timed_rounds:
        seconds, split = rounds_of(estimator, found, levels)
        estimator.timed_rounds[key] = (float(_exposed(estimator, found, seconds, split).max()), split)
    return estimator.timed_rounds[key]


def waits_of(estimator: Estimator, found: Candidate) -> tuple[Matrix, Matrix]:
    """Of the round at each position, float64 [nodes] each: its seconds as in rounds_of, and those of them that a step
    waits for it after its passes."""
    seconds, split = rounds_of(estimator, found)
    return seconds, _exposed(estimator, found, seconds, split)


def _exposed(estimator: Estimator, found: Candidate, seconds: Matrix, split: bool) -> Matrix:
    return estimator.hiding(found.places, found.cut, _pattern(estimator, split)).exposed(seconds)


def rounds_of(estimator: Estimator, found: Candidate, levels: bool | None = None) -> tuple[Matrix, bool]:
    """Seconds of the round at each position, float64 [nodes], with publishers by bandwidth, and whether rounds go in
    two levels.

    With pattern ``auto`` rounds go in two levels where that is faster by more than measurements vary (it encodes sums
    once more, with a loss), and in groups of more than MOST_TOGETHER members. ``levels``: a plan's decision about it;
    None where none is made yet.
    """
    groups = [found.places[:, position] for position in range(found.places.shape[1])]
    publishers = [publisher_fractions(estimator.network, estimator.sent, group) for group in groups]

    def seconds(pattern: str) -> Matrix:
        return _rounds(estimator, found.places, found.cut, pattern, publishers)

    wished = estimator.workload.pattern
    regions = cut_regions(estimator.regions, found.places)
    possible = any(_has_levels(regions[group]) for group in groups)
    if not possible or levels is False or wished not in ("auto", "two_level"):
        return seconds("publishers" if wished == "two_level" else wished), False
    split = seconds("two_level")
    if wished == "two_level" or levels or len(found.places) > MOST_TOGETHER:
        return split, True
    usual = seconds(wished)
    return (split, True) if split.max() * (1 + NOISE) < usual.max() else (usual, False)


def _rounds(
    estimator: Estimator, places: numpy.ndarray, cut: Cut, pattern: str, publishers: Sequence[Sequence[float]] = ()
) -> Matrix:
    network, sent, regions = estimator.network, estimator.sent, cut_regions(estimator.regions, places)
    bits = stage_bits(cut)
    result = []
    for position in range(places.shape[1]):
        own = numpy.array(publishers[position]) if publishers else None
        result.append(round_seconds(network, sent, places[:, position], float(bits[position]), pattern, own, regions))
    shared = site_seconds(network, places, bits, pattern, regions)
    seconds: Matrix = numpy.array(result)
    if cut.tied:
        # The nodes of both positions send the shared matrix over the same lines as their stages' rounds.
        seconds[[0, -1]] += tied_seconds(network, sent, places, cut, pattern, regions)
        both = tied_group(places)[:, None]
        shared += site_seconds(network, both, numpy.array([cut.tied]), pattern, regions)
    seconds = numpy.maximum(seconds, shared)
    return seconds


def _pattern(estimator: Estimator, split: bool) -> str:
    """The pattern of rounds that go in two levels or not."""
    wished = estimator.workload.pattern
    return "two_level" if split else "publishers" if wished == "two_level" else wished


def _has_levels(regions: numpy.ndarray) -> bool:
    """Whether the members of a group, by their regions' numbers, are in several regions and not all alone there."""
    return 1 < len(numpy.unique(regions)) < len(regions)
