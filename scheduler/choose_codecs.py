"""Which links get a codec: those that limit the step. Compressing only what is limited beats compressing all."""

from __future__ import annotations

import numpy

from .estimate import Estimator, link_class
from .shapes import Candidate
from .workload import CodecChoice, Workload


def choose_codecs(estimator: Estimator, found: Candidate) -> dict[str, str]:
    """Link class -> codec, for the classes that the candidate's pipelines use, and "updates" for the rounds.

    A class is "REGION" inside a region and "REGION>REGION" between two; without regions, "NODE>NODE". The choice is
    among `workload.codecs`; a class takes the one with which its messages and the coding itself end soonest, where
    both run beside the compute of a stage: nothing is gained below the stage's own time.
    """
    workload = estimator.workload
    if not workload.codecs:
        return {}
    chosen: dict[str, str] = {}
    cut = found.cut
    rows = numpy.tile(found.places, (1, cut.chunks))
    compute = cut.work[None, :] / estimator.speed[rows] * (1 + workload.backward_ratio)
    needed = compute.max(axis=1) if rows.shape[1] else compute.sum(axis=1)
    worst: dict[str, tuple[float, int, float]] = {}
    for pipeline, row in enumerate(rows):
        for stage in range(len(row) - 1):
            sender, receiver = int(row[stage]), int(row[stage + 1])
            if sender == receiver:
                continue
            kind = link_class(estimator.network, sender, receiver)
            per_bit = float(max(estimator.per_bit[sender, receiver], estimator.per_bit[receiver, sender]))
            elements = float(cut.elements[stage])
            if kind not in worst or per_bit * elements > worst[kind][0] * worst[kind][1]:
                worst[kind] = (per_bit, int(elements), float(needed[pipeline]))
    for kind, (per_bit, elements, period) in sorted(worst.items()):
        chosen[kind] = best_codec(workload, per_bit, elements, period)
    return chosen


def best_codec(workload: Workload, per_bit: float, elements: float, period: float) -> str:
    """The codec that ends a microbatch's exchange over one link soonest, never counting a gain below `period`.

    per_bit: seconds for each bit. period: seconds that the stage computes anyhow. Ties go to the cheaper coding.
    """

    def cost(codec: CodecChoice) -> tuple[float, float, float]:
        coding = elements * codec.seconds
        bits = max(codec.forward, codec.backward)
        return max(period + coding, elements * bits * per_bit), coding, bits

    return min(workload.codecs, key=cost).name
