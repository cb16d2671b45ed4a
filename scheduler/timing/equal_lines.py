"""The rounds of members whose lines are all equal, by the same functions that time the rounds of a plan."""

from __future__ import annotations

from functools import cached_property

import numpy

from ..networks.devices import Device, Matrix
from ..networks.network import Network
from ..workloads.early import EarlyRounds
from ..workloads.workload import settled_pattern
from .early import Hiding, hiding
from .estimate import BARELY
from .rounds import per_bit_sent, round_seconds

ENOUGH = 3
"""Members that stand for any larger number: all have publishers, and only the bits that each sends differ."""


class EqualLines:
    """A group of ``members`` nodes, at least 2, with lines of ``rate`` bit/s each way and ``latency`` seconds one way
    to each other."""

    def __init__(self, members: int, rate: float, latency: float) -> None:
        self.members = members
        few = min(members, ENOUGH)
        delays = numpy.full((few, few), latency)
        numpy.fill_diagonal(delays, 0.0)
        devices = [Device(f"member {at}", upload=rate, download=rate) for at in range(few)]
        self._network = Network(devices, delays, numpy.full((few, few), rate))
        self._few = few

    def seconds(self, bits: float) -> float:
        """Seconds of a round with an encoded vector of so many bits. Each member sends and receives (members - 1) /
        members of it twice, or with one other member all of it once. The round is one of a single level; a plan has two
        where there are more than MOST_TOGETHER members."""
        share = (1 - 1 / self.members) / (1 - 1 / self._few)
        return round_seconds(self._network, self._sent, numpy.arange(self._few), bits * share, "auto")

    def waits(self, bits: float, parameters: int, backward: float) -> float:
        """Those of the seconds that a step in gradient mode waits for after its last backward pass of ``backward``
        seconds, through a stage of so many parameters whose gradients come at an even rate."""
        taken: Matrix = numpy.array([self.seconds(bits)])
        return float(self._hiding(parameters, backward).exposed(taken)[0])

    def _hiding(self, parameters: int, backward: float) -> Hiding:
        publishers = 1 if settled_pattern("auto", self.members) == "all_to_all" else self.members
        alone = numpy.array([self.seconds(BARELY)])
        layers = [([float(parameters)], [1.0])]
        return hiding(EarlyRounds(), layers, numpy.array([backward]), publishers, alone)

    @cached_property
    def _sent(self) -> Matrix:
        return per_bit_sent(self._network)
