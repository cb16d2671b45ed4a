"""What the last backward pass of a step hides of its round, where rounds begin within it.

With b the seconds of a stage's last backward pass (of one microbatch), E those of its round and n buckets, of which
bucket k (1 is the one with the last layers) is complete a part t_k of the pass after its beginning, a step waits

    max over k of  (E - L) (n - k + 1) / n - b (1 - t_k),  and L

for the round after the pass: what is left of the round when bucket k begins, less what is left of the pass. L: what
nothing hides, the latencies and the round of a matrix that the first and the last stage share, whose gradient is
complete only with the embedding's. If gradients come at an even rate, t_k = k / n, this is
max(E - b (1 - 1/n), (E - L) / n + L).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from ..networks.devices import Matrix
from ..workloads.early import MOST, EarlyRounds


@dataclass(frozen=True)
class Hiding:
    """Of each position's round. left: float64 [p, k], the part of the round that is left when a bucket begins. hidden:
    float64 [p, k], seconds of the last backward pass that are left then. alone: float64 [p], seconds that nothing
    hides."""

    left: Matrix
    hidden: Matrix
    alone: Matrix

    def exposed(self, rounds: Matrix) -> Matrix:
        """float64 [..., p]: seconds that a step waits for rounds of so many seconds, float64 [..., p], after its
        passes."""
        alone = numpy.minimum(self.alone, rounds)
        waits: Matrix = ((rounds - alone)[..., None] * self.left - self.hidden).max(axis=-1) + alone
        return waits


def nothing_hidden(positions: int) -> Hiding:
    """Rounds that begin after the passes."""
    return Hiding(numpy.ones((positions, 1)), numpy.zeros((positions, 1)), numpy.zeros(positions))


def complete_at(parameters: Sequence[float], flops: Sequence[float], buckets: int) -> Matrix:
    """float64 [buckets]: the part of a stage's backward pass after which each bucket is complete, the last layers'
    first. parameters, flops: of its layers. A layer's gradients come at an even rate while it computes."""
    elements = numpy.concatenate([[0.0], numpy.cumsum(numpy.array(parameters, dtype=numpy.float64)[::-1])])
    passed = numpy.concatenate([[0.0], numpy.cumsum(numpy.array(flops, dtype=numpy.float64)[::-1])])
    if not (passed[-1] > 0 and elements[-1] > 0):
        return numpy.ones(buckets)
    ends = elements[-1] * numpy.arange(1, buckets + 1) / buckets
    # Of elements that come at once (a layer without flops), each is complete when the last of them is.
    at = numpy.minimum(numpy.searchsorted(elements, ends * (1 - 1e-12)), len(elements) - 1)
    size = elements[at] - elements[at - 1]
    inside = numpy.where(size > 0, (ends - elements[at - 1]) / numpy.where(size > 0, size, 1.0), 1.0)
    result: Matrix = (passed[at - 1] + numpy.clip(inside, 0.0, 1.0) * (passed[at] - passed[at - 1])) / passed[-1]
    return result


def hiding(
    early: EarlyRounds,
    layers: Sequence[tuple[Sequence[float], Sequence[float]]],
    backward: Matrix,
    publishers: int,
    alone: Matrix,
) -> Hiding:
    """layers: (parameters, flops) of the layers of each position's stage. backward: float64 [p], seconds of its last
    backward pass, 0 where its members offer all after it. publishers: see ``EarlyRounds.buckets``."""
    left, hidden = numpy.zeros((len(layers), MOST)), numpy.zeros((len(layers), MOST))
    for position, (parameters, flops) in enumerate(layers):
        count = early.buckets(sum(parameters), publishers) if backward[position] > 0 else 1
        left[position, :count] = numpy.arange(count, 0, -1) / count
        left[position, count:] = 1 / count  # the last bucket again: 0 times a round without a link is no number
        hidden[position, :count] = backward[position] * (1 - complete_at(parameters, flops, count))
        if count == 1:
            hidden[position, 0] = 0.0
    return Hiding(left, hidden, numpy.where(numpy.isfinite(alone), alone, 0.0))
