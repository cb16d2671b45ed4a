"""Estimates for links that nobody measured, and caution about links that were measured long ago.

Latency: the length of the shortest path over measured links. The real latency is hardly longer, and between devices of
one place not much shorter. Rate: the smaller of the sender's fastest measured link and the receiver's, because the
narrower of the two lines limits the link.

Age: a rate that a burst measured an hour ago may have changed; a rate that training shows now has not. So an old rate
is multiplied by a confidence below 1, but never falls below the slowest link of either end. Of two links with equal
rates a plan then takes the one measured last, and it does not leave links that it uses for links whose numbers are old.
"""

from __future__ import annotations

import math

import numpy
from numpy.typing import NDArray

Matrix = NDArray[numpy.float64]

HOPS = 3
"""How often paths are joined to longer ones: after that a path has up to 2^HOPS links."""
CLOSEST = 24
"""Paths are sought over this many of a device's nearest neighbours."""


OLD_S = 3600.0
"""Seconds after which a measurement has lost half of what it loses by age."""
LEAST = 0.75
"""The confidence of the oldest measurements: the factor on their rate."""


def confidence_of(age: float) -> float:
    """The factor on a measured rate, from 1 (measured just now, or shown by training) down to LEAST. age: seconds."""
    return LEAST + (1.0 - LEAST) * math.pow(0.5, max(0.0, age) / OLD_S)


def cautious(rates: Matrix, confidence: Matrix, lines: Matrix) -> Matrix:
    """float64 [n, n] bit/s: the rates that a plan counts with. rates: bit/s, measured or guessed. confidence: 0 for a
    guess, which stays as it is because guesses are low already. lines: bit/s, from slowest_lines."""
    floor = numpy.minimum(rates, lines)
    counted: Matrix = numpy.where(confidence > 0, numpy.maximum(rates * confidence, floor), rates)
    return counted


def fill_latency(known: Matrix, otherwise: float) -> Matrix:
    """float64 [n, n] seconds one way: `known` with each nan (not measured) replaced by the shortest path over measured
    links, or by `otherwise` where there is none."""
    ways = numpy.where(numpy.isnan(known), numpy.inf, known)
    numpy.fill_diagonal(ways, 0.0)
    missing = numpy.isnan(known)
    for _ in range(HOPS):
        if not (missing & numpy.isinf(ways)).any():
            break
        longer = ways.copy()
        near = numpy.argsort(ways, axis=1)[:, 1 : CLOSEST + 1]
        for column in near.T:
            first = ways[numpy.arange(len(ways)), column]
            numpy.minimum(longer, first[:, None] + ways[column], out=longer)
        ways = longer
    filled: Matrix = numpy.where(missing, numpy.where(numpy.isinf(ways), otherwise, ways), known)
    return filled


def slowest_lines(known: Matrix, otherwise: float) -> Matrix:
    """float64 [n, n] bit/s: the slowest measured rate among the sender's outgoing and the receiver's incoming links.

    With few devices a link lacks a measurement only because its test did not end. It is then assumed no better than the
    worst link of either end, so that no plan prefers a link for being unknown. A link that carries nothing (0) is left
    out of the minimum.
    """
    rates = numpy.where(numpy.isnan(known) | (known == 0), numpy.inf, known)
    numpy.fill_diagonal(rates, numpy.inf)
    out, into = rates.min(axis=1), rates.min(axis=0)
    out, into = numpy.where(numpy.isinf(out), otherwise, out), numpy.where(numpy.isinf(into), otherwise, into)
    lines: Matrix = numpy.minimum(out[:, None], into[None, :])
    return lines


def fill_bandwidth(known: Matrix, otherwise: float) -> Matrix:
    """float64 [n, n] bit/s: `known` with each nan (not measured) replaced by the smaller of the sender's fastest
    outgoing and the receiver's fastest incoming link."""
    rates = numpy.where(numpy.isnan(known), 0.0, known)
    numpy.fill_diagonal(rates, 0.0)
    out, into = rates.max(axis=1), rates.max(axis=0)
    out, into = numpy.where(out > 0, out, otherwise), numpy.where(into > 0, into, otherwise)
    filled: Matrix = numpy.where(numpy.isnan(known), numpy.minimum(out[:, None], into[None, :]), known)
    return filled
