"""Which links get which codec: the gentlest with which a step takes as long as with the strongest where it matters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from ..timing.candidate import Candidate
from ..timing.estimate import Estimator, link_class
from ..workloads.workload import CodecChoice, Workload

SLOWER = 0.02
"""A gentler codec may cost this part of a step."""
MOST_TRIED, MOST_DEVICES = 48, 256
"""Classes of links, and devices, up to which each choice is held against the whole step; of more, against the compute
of the stages at the link."""


@dataclass(frozen=True)
class Used:
    """A class of links as the pipelines use it. per_bit: seconds a bit of the slowest. elements: of a message over it.
    period: seconds that the stages at its ends compute for a microbatch."""

    per_bit: float
    elements: int
    period: float


def choose_codecs(estimator: Estimator, found: Candidate) -> dict[str, str]:
    """Link class -> codec, for the classes that the candidate's pipelines use.

    A class is "REGION" inside a region and "REGION>REGION" between two; without regions, "NODE>NODE". The choice is
    among `workload.codecs`, the least lossy first. Each class begins with the one that ends soonest on it alone; then,
    the fastest links first, each takes the least lossy one with which the step is no longer by more than SLOWER.
    """
    workload = estimator.workload
    if not workload.codecs:
        return {}
    used = classes(estimator, found)
    if len(used) > MOST_TRIED or len(estimator.network) > MOST_DEVICES:
        return {kind: best_codec(workload, each) for kind, each in sorted(used.items())}
    chosen = {kind: _soonest(workload, each).name for kind, each in sorted(used.items())}

    def seconds(codecs: dict[str, str]) -> float:
        coded = Estimator(estimator.network, workload, codecs)
        return coded.step(found.places, found.cut, found.microbatches).seconds

    limit = seconds(chosen) * (1 + SLOWER)
    for kind in sorted(used, key=lambda kind: (used[kind].per_bit * used[kind].elements, kind)):
        for choice in workload.codecs:
            if choice.name == chosen[kind]:
                break
            trial = {**chosen, kind: choice.name}
            if seconds(trial) <= limit:
                chosen = trial
                break
    return chosen


def classes(estimator: Estimator, found: Candidate) -> dict[str, Used]:
    """The classes of links over which the candidate's stages talk."""
    workload, cut = estimator.workload, found.cut
    rows = numpy.tile(found.places, (1, cut.chunks))
    compute = cut.work[None, :] / estimator.speed[rows] * (1 + workload.backward_ratio)
    needed = compute.max(axis=1)
    worst: dict[str, Used] = {}
    for pipeline, row in enumerate(rows):
        for stage in range(len(row) - 1):
            sender, receiver = int(row[stage]), int(row[stage + 1])
            if sender == receiver:
                continue
            kind = link_class(estimator.network, sender, receiver)
            per_bit = float(max(estimator.per_bit[sender, receiver], estimator.per_bit[receiver, sender]))
            here = Used(per_bit, int(cut.elements[stage]), float(needed[pipeline]))
            if kind not in worst or per_bit * here.elements > worst[kind].per_bit * worst[kind].elements:
                worst[kind] = here
    return worst


def best_codec(workload: Workload, link: Used) -> str:
    """The least lossy codec with which a microbatch's exchange over one link takes no longer than with any other, never
    counting a gain below the stages' own time."""
    least = min(_cost(link, codec) for codec in workload.codecs)
    return next(codec.name for codec in workload.codecs if _cost(link, codec) <= least * (1 + SLOWER))


def _cost(link: Used, codec: CodecChoice) -> float:
    coding = link.elements * codec.seconds
    return max(link.period + coding, link.elements * max(codec.forward, codec.backward) * link.per_bit)


def _soonest(workload: Workload, link: Used) -> CodecChoice:
    """What ends soonest on the link alone, coding counted."""

    def cost(codec: CodecChoice) -> float:
        return link.elements * (max(codec.forward, codec.backward) * link.per_bit + codec.seconds)

    return min(workload.codecs, key=cost)
