"""Pairs that cannot reach each other: planned apart, or the fewest of them left out, with the reason."""

import itertools

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Workload, plan

LAYERS = tuple(Layer(f"block {i}", 20_000, 1e10, 1000) for i in range(8))


def network(count, *apart):
    bandwidth = numpy.full((count, count), 1e8)
    for one, other in apart:
        bandwidth[one, other] = bandwidth[other, one] = 0.0
    return Network([Device(f"n{i}", tflops=10.0) for i in range(count)], numpy.full((count, count), 0.02), bandwidth)


def pairs_that_talk(made):
    """Neighbours in a pipeline, and the members of a stage's group."""
    found = {pair for row in made.pipelines for pair in itertools.pairwise(row)}
    for stage in range(len(made.stages)):
        group = made.group(stage)
        found |= {(one, other) for one in group for other in group if one != other}
    return {frozenset(pair) for pair in found}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("apart", [[(1, 3)], [(1, 3), (1, 4)], [(1, 2), (1, 3), (2, 3)]])
@pytest.mark.parametrize("again", [False, True])
def test_the_largest_usable_set_trains(stages, apart, again):
    workload = Workload(layers=LAYERS, batch=64, update_bits=4.0, overlap=1, stages=stages)
    current = plan(network(6), workload) if again else None
    assert current is None or len(current.nodes) == 6
    made = plan(network(6, *apart), workload, current=current)
    assert not pairs_that_talk(made) & {frozenset((f"n{one}", f"n{other}")) for one, other in apart}
    assert len(made.nodes) >= 4
    assert set(made.nodes) | set(made.spares) == {f"n{i}" for i in range(6)}
    assert all(made.spares.values())
