"""Which links get which codec: on each link the least lossy codec that does not make the step longer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from ..timing.candidate import Candidate
from ..timing.estimate import Estimator, link_class
from ..workloads.workload import CodecChoice, Workload

SLOWER = 0.02
"""A less lossy codec may make a step longer by this part."""
MOST_TRIED, MOST_DEVICES = 48, 256
"""Most link classes, and most devices, for which each choice is judged by the whole step's time; beyond either, by the
compute of the stages at the link's ends."""


@dataclass(frozen=True)
class Used:
    """One link class as the pipelines use it. per_bit: seconds a bit of its slowest link. elements: of one message.
    period: seconds that the slower stage at its ends computes for a microbatch."""

    per_bit: float
    elements: int
    period: float


def choose_codecs(estimator: Estimator, found: Candidate) -> dict[str, str]:
    """Link class -> codec, for the classes that the candidate's pipelines use.

    A class is "REGION" inside a region and "REGION>REGION" between two; without regions, "NODE>NODE". The choice is
    among `workload.codecs`, the least lossy first. Each class begins with the codec whose messages arrive soonest.
    Then, the fastest links first, each class takes the least lossy codec that makes the step no longer than SLOWER of
    it.
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
    """The link classes over which the candidate's neighbouring stages send."""
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
    """The least lossy codec with which the link's messages of a microbatch, or the compute of the stages at its ends
    where that takes longer, are within SLOWER of the shortest time."""
    least = min(_cost(link, codec) for codec in workload.codecs)
    return next(codec.name for codec in workload.codecs if _cost(link, codec) <= least * (1 + SLOWER))


def _cost(link: Used, codec: CodecChoice) -> float:
    coding = link.elements * codec.seconds
    return max(link.period + coding, link.elements * max(codec.forward, codec.backward) * link.per_bit)


def _soonest(workload: Workload, link: Used) -> CodecChoice:
    """The codec with the least seconds on this link alone, coding included."""

    def cost(codec: CodecChoice) -> float:
        return link.elements * (max(codec.forward, codec.backward) * link.per_bit + codec.seconds)

    return min(workload.codecs, key=cost)
