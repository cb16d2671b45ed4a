"""Links that nobody measured, from those that were, and those that were measured long ago.

Latency: the shortest way over devices between which it is known; the real one is hardly longer, and among devices of
one place not much shorter. Rate: what the sender's best link carries, or the receiver's best, whichever is less: of two
ends on lines of their own the narrower line decides.

Age: what a burst found an hour ago may have changed, and what training shows now has not. So an old rate counts with a
part of itself, never below the slowest line that its ends have shown: between two links that were measured alike a plan
takes the one that it knows, and it does not leave links that it uses for numbers of yesterday.
"""

from __future__ import annotations

import math

import numpy
from numpy.typing import NDArray

Matrix = NDArray[numpy.float64]

HOPS = 3
"""Times that ways are joined: after that a way has up to 2^HOPS links."""
CLOSEST = 24
"""Of each device, the nearest known ones over which ways are sought."""


OLD_S = 3600.0
"""Seconds after which a measurement has lost half of what it loses by age."""
LEAST = 0.75
"""The part of itself with which the oldest measurement counts."""


def confidence_of(age: float) -> float:
    """From 1 (just now, or shown by training) to LEAST. age: seconds."""
    return LEAST + (1.0 - LEAST) * math.pow(0.5, max(0.0, age) / OLD_S)


def cautious(rates: Matrix, confidence: Matrix, lines: Matrix) -> Matrix:
    """float64 [n, n] bit/s: what to count with. rates: measured or guessed. confidence: 0 for a guess, which is
    cautious already. lines: the slowest that either end has shown (slowest_lines)."""
    floor = numpy.minimum(rates, lines)
    counted: Matrix = numpy.where(confidence > 0, numpy.maximum(rates * confidence, floor), rates)
    return counted


def fill_latency(known: Matrix, otherwise: float) -> Matrix:
    """float64 [n, n] seconds one way, nan where it was not measured: with those as the shortest known way."""
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
    """float64 [n, n] bit/s: the slowest that is known of what the sender sends and the receiver takes in.

    Of a few devices a link is missing because its test did not end: then it is no better than the worst that either end
    has shown, and a plan must not prefer it for being unknown. A link that carries nothing (0) does not count.
    """
    rates = numpy.where(numpy.isnan(known) | (known == 0), numpy.inf, known)
    numpy.fill_diagonal(rates, numpy.inf)
    out, into = rates.min(axis=1), rates.min(axis=0)
    out, into = numpy.where(numpy.isinf(out), otherwise, out), numpy.where(numpy.isinf(into), otherwise, into)
    lines: Matrix = numpy.minimum(out[:, None], into[None, :])
    return lines


def fill_bandwidth(known: Matrix, otherwise: float) -> Matrix:
    """float64 [n, n] bit/s, nan where it was not measured: with those as the narrower of both ends' best lines."""
    rates = numpy.where(numpy.isnan(known), 0.0, known)
    numpy.fill_diagonal(rates, 0.0)
    out, into = rates.max(axis=1), rates.max(axis=0)
    out, into = numpy.where(out > 0, out, otherwise), numpy.where(into > 0, into, otherwise)
    filled: Matrix = numpy.where(numpy.isnan(known), numpy.minimum(out[:, None], into[None, :]), known)
    return filled
