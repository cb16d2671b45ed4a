"""A candidate: a whole plan with device indices instead of names; the search makes candidates, the simulation times
them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from .depth import Depths
from .estimate import Cut, Estimate

Places = numpy.ndarray
"""int [pipelines, stages] of device indices."""


@dataclass(frozen=True)
class Shape:
    """`pipelines` pipelines of `nodes` nodes; each node holds `chunks` stages."""

    pipelines: int
    nodes: int
    chunks: int = 1

    @property
    def devices(self) -> int:
        """Devices that the shape uses."""
        return self.pipelines * self.nodes


@dataclass(frozen=True)
class Candidate:
    """A whole plan with device indices. places: int [d, nodes]. in_flight: as in the plan in force; None: still to be
    chosen."""

    places: Places
    spare: tuple[int, ...]
    cut: Cut
    microbatches: tuple[int, ...]
    estimate: Estimate
    origin: str
    in_flight: Depths | None = None

    @property
    def seconds(self) -> float:
        """Estimated seconds of a step."""
        return self.estimate.seconds

    @property
    def shape(self) -> Shape:
        """The shape of `places`."""
        return Shape(len(self.places), self.places.shape[1], self.cut.chunks)
