"""A pipeline simulated alone ends when the simulator of everything says that it does, to the last bit."""

from itertools import pairwise

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Workload
from farflung.scheduler.timing import compiled, pipeline, simulated
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.timing.simulated import ends_of, pipeline_ends


def case(seed: int, schedule: str) -> tuple[Estimator, numpy.ndarray, Cut, tuple[int, ...]]:
    """Pipelines of 1 to 5 devices, some with lines of their own; in every third case everything takes whole seconds, so
    that many events fall together."""
    random = numpy.random.default_rng(seed)
    stages, whole = int(random.integers(1, 6)), seed % 3 == 0
    count, line = 3 * stages, None if seed % 2 else 4.0
    devices = [
        Device(
            f"d{at}",
            tflops=1e-12 * (2.0 ** random.integers(0, 3) if whole else random.uniform(1, 4)),
            upload=line,
            download=line and 2 * line,
        )
        for at in range(count)
    ]
    rate = 2.0 ** random.integers(0, 4, (count, count)) if whole else random.uniform(0.5, 8, (count, count))
    latency = random.integers(0, 3, (count, count)) if whole else random.uniform(0, 3, (count, count))
    layers = tuple(Layer(f"l{at}", 1, float(random.integers(1, 4)), 1) for at in range(stages + 2))
    workload = Workload(layers, batch=20, schedule=schedule, activation_bits=4.0, gradient_bits=8.0, efficiency=1.0)
    places = random.permutation(count).reshape(3, stages)
    edges = [0, *sorted(random.choice(range(1, stages + 2), stages - 1, replace=False).tolist()), stages + 2]
    cut = Cut(workload, tuple((a, b - 1) for a, b in pairwise(edges)))
    return Estimator(Network(devices, latency * 1.0, rate * 1.0), workload), places, cut, (3, 9, 8)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_alone_is_as_together(schedule: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if fast and compiled.numba() is None:
        pytest.skip("numba, of the extra `fast`, is not installed")
    monkeypatch.setattr(simulated, "is_loaded", lambda: fast)
    for seed in range(40):
        estimator, places, cut, share = case(seed, schedule)
        _, together = pipeline_ends(estimator, places, cut, share, schedule)
        assert ends_of(estimator, places, cut, share, schedule).tolist() == together.tolist()


def test_a_pipeline_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    loop = pipeline.pipeline_end
    monkeypatch.setattr(simulated, "is_loaded", lambda: False)
    monkeypatch.setattr(simulated, "pipeline_end", lambda *given: (calls.append(given), loop(*given))[1])
    estimator, places, cut, share = case(1, "1f1b")
    first = ends_of(estimator, places, cut, share, "1f1b", depths=((2,) * places.shape[1],) * 3)
    again = ends_of(estimator, places[[1, 0, 2]], cut, (9, 3, 8), "1f1b", depths=((2,) * places.shape[1],) * 3)
    assert len(calls) == 3 and again.tolist() == first[[1, 0, 2]].tolist()
