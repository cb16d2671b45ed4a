"""A matrix that the first and the last stage share (tied embedding): the nodes of both exchange it in separate
rounds."""

from __future__ import annotations

from typing import Protocol

import numpy

from ..networks.devices import Matrix
from ..networks.network import Network
from .rounds import round_seconds


class Tied(Protocol):
    """The attributes of a cut (`estimate.Cut`) that this file reads."""

    update: Matrix
    """Bits of each position's updates, float64 [nodes]."""
    tied: float
    """Bits of the shared matrix; 0: there is none."""


def stage_bits(cut: Tied) -> Matrix:
    """float64 [nodes]: bits of each position's round without the shared matrix, which goes in separate rounds."""
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
    network: Network, sent: Matrix, places: numpy.ndarray, cut: Tied, pattern: str, regions: numpy.ndarray | None = None
) -> float:
    """Seconds of the round of the shared matrix; 0 where there is none. All members publish equal parts of it."""
    if not cut.tied:
        return 0.0
    return round_seconds(network, sent, tied_group(places), cut.tied, pattern, regions=regions)
