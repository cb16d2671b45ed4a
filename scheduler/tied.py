"""A matrix that the first and the last stage share: nodes of both exchange it in rounds of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from .devices import Matrix
from .network import Network
from .rounds import round_seconds

if TYPE_CHECKING:
    from .estimate import Cut


def stage_bits(cut: Cut) -> Matrix:
    """float64 [nodes]: bits of each position's round without the shared matrix, which goes in rounds of its own."""
    bits: Matrix = cut.update.copy()
    if cut.tied:
        bits[0] -= cut.tied
        bits[-1] -= cut.tied
    return bits


def tied_group(places: numpy.ndarray) -> numpy.ndarray:
    """int [2 d]: the nodes of the first and the last position of a placement, int [d, nodes]."""
    both: numpy.ndarray = numpy.concatenate([places[:, 0], places[:, -1]])
    return both


def tied_seconds(
    network: Network, sent: Matrix, places: numpy.ndarray, cut: Cut, pattern: str, regions: numpy.ndarray | None = None
) -> float:
    """Seconds of the round of the shared matrix; 0 where there is none. Its blocks are published by all alike."""
    if not cut.tied:
        return 0.0
    return round_seconds(network, sent, tied_group(places), cut.tied, pattern, regions=regions)
