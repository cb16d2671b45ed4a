"""The compiled annealing for a step's seconds counts as the search in batches does, and ends where no swap helps."""

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Workload
from farflung.scheduler.search.annealing import Searcher
from farflung.scheduler.search.swaps import anneal, swap
from farflung.scheduler.timing import compiled
from farflung.scheduler.timing.estimate import Cut, Estimator

pytestmark = pytest.mark.skipif(compiled.numba() is None, reason="numba, of the extra `fast`, is not installed")


def searcher(seed: int, **wish: object) -> Searcher:
    """3 pipelines of 4 nodes and 3 spares, every link different."""
    random = numpy.random.default_rng(seed)
    count, line = 15, 1e8 if seed % 2 else None
    devices = [
        Device(
            f"d{at}", tflops=float(random.uniform(5, 50)), upload=line, memory_bytes=float(random.choice([6e8, 9e9]))
        )
        for at in range(count)
    ]
    rate = 10 ** random.uniform(7, 9, (count, count))
    layers = tuple(Layer(f"l{at}", 3_000_000, 1e11, 100_000) for at in range(8))
    workload = Workload(layers, batch=24, **{"overlap": seed % 3 and 1, "update_bits": 4.0, **wish})
    cut = Cut(workload, ((0, 1), (2, 3), (4, 5), (6, 7)))
    network = Network(devices, random.uniform(0, 0.05, (count, count)), rate)
    return Searcher(Estimator(network, workload), cut, numpy.arange(12).reshape(3, 4), [12, 13, 14])


@pytest.mark.parametrize("wish", [{}, {"schedule": "gpipe"}, {"codec_seconds": 1e-8}, {"every": 5, "overlap": 0}])
def test_what_it_ends_with_is_no_worse_by_the_values_in_batches(wish: dict[str, object]) -> None:
    for seed in range(6):
        one = searcher(seed, **wish)
        before = one.value
        anneal(one, 4000, 0.02, 1e-5, seed)
        assert one.value < before
        left = numpy.repeat(numpy.arange(12), 15)
        right = numpy.tile(numpy.arange(15), 12)
        told = one.values_of_swaps(left[left < right], right[left < right])
        anneal(one, 4000, 1e-9, 1e-9, seed)  # cold: only downhill
        assert sorted(one.flat.tolist()) == list(range(15))
        assert one.value <= float(told.min()) * (1 + 1e-9)


def test_a_run_stops_when_time_is_up_and_a_seed_gives_one_result() -> None:
    one, two, none = searcher(1), searcher(1), searcher(1)
    for each in (one, two):
        swap(each, numpy.random.default_rng(5), lambda: False, 0.01)
    assert one.flat.tolist() == two.flat.tolist() and one.value == two.value
    swap(none, numpy.random.default_rng(5), lambda: True, 0.01)
    assert none.flat.tolist() == list(range(15))
