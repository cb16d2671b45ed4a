"""Plans of a few unequal devices against every placement, cut and share there is, by the same simulator."""

from collections.abc import Iterator
from itertools import combinations, pairwise, permutations

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Workload, plan, predict
from farflung.scheduler.search.shapes import needed_memory
from farflung.scheduler.timing.candidate import Candidate
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.timing.seconds import candidate_seconds

DEVICES, LAYERS, MICROBATCHES, MEMORY = 4, 5, 6, (4e8, 8e8, 4e9)


def case(seed: int) -> tuple[Network, Workload]:
    """Four devices of one to sixteen times the speed, on links of 20 Mbit/s to 2 Gbit/s; some have little memory."""
    random = numpy.random.default_rng(seed)
    devices = [
        Device(f"d{at}", tflops=float(random.choice([5, 10, 20, 40, 80])), memory_bytes=float(random.choice(MEMORY)))
        for at in range(DEVICES)
    ]
    rate = 10 ** random.uniform(7.3, 9.3, (DEVICES, DEVICES))
    latency = random.uniform(0.001, 0.05, (DEVICES, DEVICES))
    numpy.fill_diagonal(latency, 0.0)
    layers = tuple(
        Layer(f"l{at}", int(random.integers(2_000_000, 12_000_000)), float(random.uniform(0.2, 1.5)) * 1e12, 200_000)
        for at in range(LAYERS)
    )
    overlap = int(random.integers(0, 2))
    bits = float(random.choice([0.2, 8.0, 32.0]))
    return Network(devices, latency, rate), Workload(layers, MICROBATCHES, update_bits=bits, overlap=overlap)


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to make a whole number of so many parts of at least 1."""
    for edges in combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in zip((0, *edges), (*edges, total), strict=True))


def best_of_all(network: Network, workload: Workload) -> tuple[float, Candidate | None]:
    """The least seconds of a simulated step, and of what plan."""
    estimator, best, which = Estimator(network, workload), float("inf"), None
    for stages in range(1, DEVICES + 1):
        for lengths in splits(LAYERS, stages):
            edges = numpy.cumsum([0, *lengths])
            cut = Cut(workload, tuple((a, b - 1) for a, b in pairwise(edges.tolist())))
            for pipelines in range(1, DEVICES // stages + 1):
                seen = set()
                for order in permutations(range(DEVICES), pipelines * stages):
                    places = numpy.array(order).reshape(pipelines, stages)
                    key = tuple(sorted(map(tuple, places.tolist())))
                    if key in seen:
                        continue
                    seen.add(key)
                    for share in splits(MICROBATCHES, pipelines):
                        need = [needed_memory(workload, cut, count) for count in share]
                        if any((row > network.memory[mine]).any() for row, mine in zip(need, places, strict=True)):
                            continue
                        estimate = estimator.step(places, cut, share)
                        if estimate.seconds > 1.3 * best:  # near the simulated one
                            continue
                        found = Candidate(places, (), cut, share, estimate, "")
                        seconds = candidate_seconds(estimator, found)
                        if seconds < best:
                            best, which = seconds, found
    return best, which


def gap(seed: int) -> float:
    """How much slower than the best of all the plan is."""
    network, workload = case(seed)
    made = plan(network, workload, time_limit=60)
    return predict(network, workload, made).step_s / best_of_all(network, workload)[0] - 1


@pytest.mark.parametrize("seed", [2, 13, 21, 22, 38, 173])
def test_these_were_up_to_a_quarter_slower_than_the_best_of_all(seed: int) -> None:
    """Found by the search below: the analytic time ranks shapes and cuts otherwise than the simulator; and of a shape
    that only the two largest hold no construction fitted (173)."""
    assert gap(seed) <= 0.02


@pytest.mark.slow
def test_two_hundred_cases_are_near_the_best_of_all() -> None:
    gaps = sorted(gap(seed) for seed in range(200))
    assert gaps[-1] <= 0.02, f"the worst are {gaps[-5:]}"
