"""The compiled annealing: it counts right, keeps everybody once, and finds what a simple annealer does not."""

import time
from collections.abc import Iterator

import numpy
import pytest

from farflung.scheduler import Device, Network
from farflung.scheduler.published.dtfm import Dtfm
from farflung.scheduler.published.search import search_dtfm
from farflung.scheduler.timing import compiled

loops = pytest.importorskip("farflung.scheduler.published.loops", reason="numba, of the extra `fast`, is not installed")


def lines(seed: int, count: int = 24) -> Network:
    """Everybody behind a line of its own, log-normal."""
    random = numpy.random.default_rng(seed)
    up, delay = 1e9 * random.lognormal(0, 0.8, count), random.uniform(0.005, 0.1, count)
    latency = delay[:, None] + delay[None, :]
    numpy.fill_diagonal(latency, 0.0)
    return Network([Device(f"d{i}") for i in range(count)], latency, numpy.repeat(up[:, None], count, axis=1))


def explicit(model: Dtfm, places: numpy.ndarray) -> float:
    """The cost with these very pipelines."""
    hops = [model.pipe[places[:, stage], places[:, stage + 1]].max() for stage in range(places.shape[1] - 1)]
    return float(model.data_seconds(places.T).max() + 2 * sum(hops))


@pytest.mark.parametrize("shape", [(4, 6), (6, 3), (2, 2), (8, 1), (1, 8)])
@pytest.mark.parametrize("seed", range(3))
def test_the_cost_that_swaps_add_up_to_is_that_of_the_placement(shape: tuple[int, int], seed: int) -> None:
    model = Dtfm(lines(seed), shape[1], shape[0])
    order = numpy.random.default_rng(seed).permutation(24)
    slots = shape[0] * shape[1]
    places, spare = order[:slots].reshape(shape).copy(), order[slots:].copy()
    before = explicit(model, places)
    heats = before / 50, before / 1e4
    best = loops.anneal_published(2 * model.data, model.pipe, places, spare, 20_000, *heats, 0.1, seed + 1)
    assert best == pytest.approx(explicit(model, places)) and best <= before * (1 + 1e-9)
    assert sorted([*places.reshape(-1).tolist(), *spare.tolist()]) == list(range(24))


def simple(model: Dtfm, moves: int, seed: int) -> float:
    """Thirty lines of annealing: random swaps from a random start."""
    random = numpy.random.default_rng(seed)
    places = random.permutation(24).reshape(4, 6)
    now = best = explicit(model, places)
    for move in range(moves):
        heat = 0.02 * best * 0.005 ** (move / moves)
        one, two = random.integers(0, 24, 2)
        places.flat[[one, two]] = places.flat[[two, one]]
        value = explicit(model, places)
        if value <= now or random.random() < numpy.exp((now - value) / heat):
            now, best = value, min(best, value)
        else:
            places.flat[[one, two]] = places.flat[[two, one]]
    return best


@pytest.mark.parametrize("seed", range(3))
def test_no_worse_than_a_simple_annealer_where_lines_are_irregular(seed: int) -> None:
    network = lines(seed)
    found = search_dtfm(network, 6, 4, time.monotonic() + 600, seed, rounds=3)
    assert found.total <= simple(Dtfm(network, 6, 4), 4000, seed) * (1 + 1e-9)
    assert found.total == search_dtfm(network, 6, 4, time.monotonic() + 600, seed, rounds=3).total


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a process that has not looked for numba yet."""
    for cached in (compiled.numba, compiled._used):
        cached.cache_clear()
    yield monkeypatch
    for cached in (compiled.numba, compiled._used):
        cached.cache_clear()


def test_without_numba_the_search_goes_on_in_batches(unasked: pytest.MonkeyPatch) -> None:
    unasked.setenv("FARFLUNG_FAST", "0")
    model = Dtfm(lines(0), 6, 4)
    assert not compiled.ready(100.0, compiled.PUBLISHED)
    found = search_dtfm(lines(0), 6, 4, time.monotonic() + 600, 0, turns=50)
    assert found.total < model.cost(numpy.arange(24).reshape(6, 4)).total


def test_a_short_search_waits_for_no_compiler(unasked: pytest.MonkeyPatch) -> None:
    unasked.setattr(compiled, "is_kept", lambda loops: False)
    assert not compiled.ready(1.0, compiled.PUBLISHED)
    assert compiled.ready(10.0, compiled.PUBLISHED) and compiled.ready(0.1, compiled.PUBLISHED)


def test_a_short_search_loads_loops_that_are_compiled(unasked: pytest.MonkeyPatch) -> None:
    unasked.setattr(compiled, "is_kept", lambda loops: True)
    assert not compiled.ready(0.1, compiled.PUBLISHED)
    assert compiled.ready(1.0, compiled.PUBLISHED)
