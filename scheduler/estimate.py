"""The fast analytic time of a step: what the inner loop of the search compares plans by.

A pipeline takes its fill and drain plus one period for each further microbatch; the period is set by the slowest
device, the slowest direction of a link, or (1F1B) the round trip that a stage waits for. The sum over hops of DT-FM
is 1.7 to 5 times too long on the published measurements, because hops overlap: the slowest one rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from .layers import Ranges
from .network import Matrix, Network
from .workload import Workload


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step and where they go.

    pipelines: float64 [d], each pipeline's forwards and backwards. rounds: float64 [p], each group's round.
    fixed, period: float64 [d]; a pipeline of m microbatches takes fixed + m * period.
    """

    seconds: float
    pipelines: Matrix
    rounds: Matrix
    fixed: Matrix
    period: Matrix


class Estimator:
    """Times placements of one workload on one network."""

    def __init__(self, network: Network, workload: Workload) -> None:
        self.network = network
        self.workload = workload
        with numpy.errstate(divide="ignore"):
            self.per_bit = 1.0 / network.rate
        numpy.fill_diagonal(self.per_bit, 0.0)
        self.flops = numpy.concatenate([[0.0], numpy.cumsum([layer.flops for layer in workload.layers])])
        self.parameters = numpy.concatenate([[0.0], numpy.cumsum([layer.parameters for layer in workload.layers])])
        self.speed = network.tflops * 1e12 * workload.efficiency

    def forward_seconds(self, places: numpy.ndarray, stages: Ranges) -> Matrix:
        """float64 [d, p]: one microbatch's forward at each place."""
        work = numpy.array([self.flops[last + 1] - self.flops[first] for first, last in stages])
        seconds: Matrix = work[None, :] * self.workload.microbatch / self.speed[places]
        return seconds

    def pipeline_terms(self, places: numpy.ndarray, stages: Ranges) -> tuple[Matrix, Matrix]:
        """(fixed, period), float64 [d] each, of pipelines given as device indices int [d, p]."""
        workload = self.workload
        forward = self.forward_seconds(places, stages)
        backward = forward * workload.backward_ratio
        both = forward + backward
        count = places.shape[1]
        if count == 1:
            period = both[:, 0]
            return numpy.zeros_like(period), period
        elements = numpy.array([workload.layers[last].activation for _, last in stages[:-1]]) * workload.microbatch
        out, back = places[:, :-1], places[:, 1:]
        ahead = elements * workload.activation_bits * self.per_bit[out, back]
        astern = elements * workload.gradient_bits * self.per_bit[back, out]
        latency = self.network.latency[out, back] + self.network.latency[back, out]
        trip = ahead + astern + latency
        fill = both.sum(axis=1) + trip.sum(axis=1)
        if workload.schedule == "gpipe":
            period = numpy.maximum(forward.max(axis=1), ahead.max(axis=1))
            period = period + numpy.maximum(backward.max(axis=1), astern.max(axis=1))
        else:
            period = numpy.maximum(both.max(axis=1), numpy.maximum(ahead, astern).max(axis=1))
            # Stage s has count - s microbatches in flight, so that many periods cover its round trip to the end.
            rest = numpy.cumsum(both[:, ::-1], axis=1)[:, ::-1]
            rest[:, :-1] += numpy.cumsum(trip[:, ::-1], axis=1)[:, ::-1]
            period = numpy.maximum(period, (rest / numpy.arange(count, 0, -1)).max(axis=1))
        return fill - period, period

    def rounds(self, places: numpy.ndarray, stages: Ranges) -> Matrix:
        """float64 [p]: seconds of one group round at each stage, by the slowest node's traffic."""
        count = len(places)
        if count == 1:
            return numpy.zeros(len(stages))
        result = numpy.zeros(len(stages))
        for stage, (first, last) in enumerate(stages):
            bits = float(self.parameters[last + 1] - self.parameters[first]) * self.workload.update_bits
            group = places[:, stage]
            square = numpy.ix_(group, group)
            link = self.network.latency[square] + bits / count * self.per_bit[square]
            numpy.fill_diagonal(link, 0.0)
            # Each node sends its part to every publisher and its own result to every node, one after another.
            result[stage] = 2.0 * max(link.sum(axis=1).max(), link.sum(axis=0).max())
        return result

    def step(self, places: numpy.ndarray, stages: Ranges, microbatches: Sequence[int]) -> Estimate:
        """The time of a step of a placement, int [d, p] device indices."""
        fixed, period = self.pipeline_terms(places, stages)
        pipelines = fixed + numpy.asarray(microbatches) * period
        rounds = self.rounds(places, stages)
        compute, exchange = float(pipelines.max()), float(rounds.max())
        every = self.workload.every
        if self.workload.overlap:
            seconds = max(compute, exchange / self.workload.overlap if every == 1 else exchange / every)
        else:
            seconds = compute + exchange / every
        return Estimate(seconds, pipelines, rounds, fixed, period)
