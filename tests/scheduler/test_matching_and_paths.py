"""Exact parts of the search against brute force."""

from itertools import pairwise, permutations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.scheduler.published.matching import bottleneck_matching, perfect
from farflung.scheduler.published.paths import held_karp, short_path


@given(st.integers(1, 6), st.integers(0, 10_000))
@settings(max_examples=60)
def test_bottleneck_matching_is_optimal_and_emits_a_feasible_matching(size, seed):
    cost = numpy.random.default_rng(seed).integers(0, 8, (size, size)).astype(float)
    value, partner = bottleneck_matching(cost)
    rows = numpy.arange(size)
    assert sorted(partner.tolist()) == rows.tolist()
    assert cost[rows, partner].max() == value
    assert value == min(cost[rows, list(order)].max() for order in permutations(range(size)))


def test_no_perfect_matching():
    assert perfect(numpy.array([[True, False], [True, False]])) is None


@given(st.integers(2, 7), st.integers(0, 10_000))
@settings(max_examples=30)
def test_held_karp_is_the_shortest_open_path(size, seed):
    cost = numpy.random.default_rng(seed).random((size, size))
    length, order = held_karp(cost)
    assert sorted(order) == list(range(size))
    assert length == pytest.approx(sum(cost[a, b] for a, b in pairwise(order)))
    best = min(sum(cost[a, b] for a, b in pairwise(path)) for path in permutations(range(size)))
    assert length == pytest.approx(best)


def test_long_paths_are_improved_by_two_opt_and_or_opt():
    random = numpy.random.default_rng(3)
    places = random.random((24, 2))
    cost = numpy.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    length, order = short_path(cost)
    assert sorted(order) == list(range(24))
    greedy = min(_greedy_length(cost, start) for start in range(24))
    assert length <= greedy
    line = numpy.abs(numpy.arange(20)[:, None] - numpy.arange(20)[None]).astype(float)
    assert short_path(line)[0] == 19


def _greedy_length(cost, at):
    left, total = set(range(len(cost))) - {at}, 0.0
    while left:
        after = min(left, key=lambda node: cost[at, node])
        total, at = total + cost[at, after], after
        left.discard(after)
    return total
