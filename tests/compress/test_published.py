"""The errors that papers and careful re-implementations give, met by these codecs on the same vectors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from farflung.compress.exchange.measurement import mean_error, nmse
from farflung.compress.fitted.solvers import (
    density,
    distribution,
    lloyd_max,
    quantile,
    shared_assignment,
    stochastic_levels,
)
from farflung.compress.primitives.tables import lloyd, quic
from farflung.compress.primitives.vectors import vector

ROWS = json.loads((Path(__file__).parent / "data" / "published.json").read_text())["rows"]
CPU = torch.device("cpu")


def distortion(half: np.ndarray) -> float:
    """E(z - nearest level)² of symmetric levels given by their positive half."""
    edges = np.concatenate([[0.0], (half[1:] + half[:-1]) / 2, [40.0]])
    mass, first = np.diff(distribution(edges)), -np.diff(density(edges))
    second = mass - np.diff(edges * density(edges))
    return float(2 * np.sum(second - 2 * half * first + half**2 * mass))


def stochastic_distortion(levels: np.ndarray) -> float:
    """The variance of stochastic rounding of z to ``levels``, from the first to the last of them."""
    low, high = levels[:-1], levels[1:]
    mass, first = np.diff(distribution(levels)), -np.diff(density(levels))
    second = np.diff(distribution(levels) - levels * density(levels))
    return float(np.sum(-second + (low + high) * first - low * high * mass))


def shared_distortion(levels: np.ndarray, tail: float = 1 / 512) -> float:
    """E(R - z)² of ``shared_levels`` on [-t, t]."""
    t = quantile(1 - tail / 2)
    z = np.linspace(-t, t, 8001)
    messages, probability, _ = shared_assignment(levels, z)
    rows = np.arange(levels.shape[0])[None, :]
    low = levels[rows, messages]
    high = levels[rows, np.minimum(messages + 1, levels.shape[1] - 1)]
    error = ((1 - probability) * (low - z[:, None]) ** 2 + probability * (high - z[:, None]) ** 2).mean(1)
    return float(np.sum(error * density(z)) * (z[1] - z[0]))


def close(spec: str, distribution: str, size: int, value: float, spread: float, trials: int) -> None:
    error, std, _ = nmse(spec, vector(distribution, size), trials)
    # Published without a spread, from 10 trials (2 at 2^20): theirs was as noisy as ours, which matters where most of
    # the energy is in a few blocks.
    theirs = spread if spread else std / error / (10 if size < 1 << 20 else 2) ** 0.5
    noise = 4 * (theirs**2 + (std / error) ** 2 / trials) ** 0.5
    allowed = max(0.08 if size < 1 << 16 else 0.045 if distribution == "hetero" else 0.02, noise)
    ratio = error / value - 1
    # The adaptive levels were published from a coarser grid; uniform THC of 8 bits at 2^20 from two trials, 11 % over
    # its own value at 2^16, where the rotation makes the size irrelevant. Less error than published is no mistake.
    lower = 0.08 if spec.startswith(("avq", "thc:bits=8")) else allowed
    # DynamiQ was published with a 16th of a bit kept for the reduction, which one encoding does not have.
    lower = 0.4 if spec.startswith("dynamiq") else lower
    assert -lower <= ratio <= allowed, f"{error:.5g}, published {value:.5g}"


SMALL = [r for r in ROWS if r[2] == 1 << 10]


@pytest.mark.parametrize(("spec", "distribution", "size", "value", "spread"), [r for r in SMALL if r[1] == "normal"])
def test_small_vectors(spec: str, distribution: str, size: int, value: float, spread: float) -> None:
    close(spec, distribution, size, value, spread, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "distribution", "size", "value", "spread"), [r for r in SMALL if r[1] != "normal"])
def test_small_heavy_tailed_vectors(spec: str, distribution: str, size: int, value: float, spread: float) -> None:
    close(spec, distribution, size, value, spread, 60)


QUICK = [r for r in ROWS if r[2] == 1 << 16 and r[1] == "student3" and not r[0].startswith(("avq", "eden:bits=0.5"))]


@pytest.mark.parametrize(("spec", "distribution", "size", "value", "spread"), QUICK)
def test_heavy_tails(spec: str, distribution: str, size: int, value: float, spread: float) -> None:
    close(spec, distribution, size, value, spread, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "distribution", "size", "value", "spread"), [r for r in ROWS if r[2] == 1 << 16])
def test_vectors(spec: str, distribution: str, size: int, value: float, spread: float) -> None:
    close(spec, distribution, size, value, spread, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "distribution", "size", "value", "spread"), [r for r in ROWS if r[2] == 1 << 20])
def test_large_vectors(spec: str, distribution: str, size: int, value: float, spread: float) -> None:
    close(spec, distribution, size, value, spread, 3)


@pytest.mark.parametrize(
    ("spec", "theory"),
    [
        (f"eden:bits={b},block=0", d / (1 - d))
        for b, d in ((1, 0.3633802), (2, 0.1174818), (3, 0.0345478), (4, 0.009501))
    ]
    + [("eden:bits=1.5,block=0", 0.3165362), ("eden:bits=2.5,block=0", 0.0822684), ("drive:block=0", 0.5707963)]
    + [("quicfl:bits=2,block=0", 0.2146), ("quicfl:bits=3,block=0", 0.0431), ("quicfl:bits=4,block=0", 0.00967)]
    + [("thc", 0.0203), ("thc:granularity=42,tail=1024", 0.021332), ("sign", 0.363380)],
)
def test_theory(spec: str, theory: float) -> None:
    for kind in ("normal",) if spec == "sign" else ("normal", "student3"):
        assert nmse(spec, vector(kind, 1 << 16), 4)[0] == pytest.approx(theory, rel=0.025)


def test_the_shared_quicfl_of_one_bit() -> None:
    assert nmse("quicfl:bits=1,block=0", vector("normal", 1 << 16), 8)[0] == pytest.approx(1.4636, rel=0.03)


def test_powersgd_is_as_good_as_its_power_step() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(64, 5) @ torch.randn(5, 300)
    assert nmse("powersgd:rank=5", matrix, 3)[0] < 1e-9
    left, values, right = torch.linalg.svd(torch.randn(100, 200) @ torch.diag(torch.logspace(0, -3, 200)))
    noisy = left @ torch.diag(values) @ right[:100]
    best = float(values[4:].square().sum() / values.square().sum())
    assert best <= nmse("powersgd:rank=4,iterations=30", noisy, 1)[0] < 1.05 * best


def test_thc_table() -> None:
    assert stochastic_levels(4, 42, 1 / 1024, False) == (0, 6, 9, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 33, 36, 42)
    assert quantile(1 - 1 / 2048) == pytest.approx(3.297193, abs=1e-6)
    assert quantile(1 - 1 / 64) == pytest.approx(2.15387, abs=1e-5)


def test_level_tables_are_what_the_solvers_find() -> None:
    expected = (0.3633802, 0.1174818, 0.0345478, 0.009501008, 2.5046684e-3, 6.4424e-4, 1.63478e-4, 4.118508e-5)
    for bits, error in enumerate(expected, 1):
        half = lloyd(bits, CPU)[1 << (bits - 1) :].double().numpy()
        assert distortion(half) == pytest.approx(error, rel=1e-5)
        assert abs(half - lloyd_max(bits)).max() < 1e-6
    for bits, error in enumerate((8.5967, 0.573271, 0.092589, 0.019468), 1):
        assert stochastic_distortion(quic(bits, False, CPU)[0].double().numpy()) == pytest.approx(error, rel=1e-4)
    for bits, error in enumerate((1.4636, 0.2146, 0.0431, 0.00967), 1):
        assert shared_distortion(quic(bits, True, CPU).double().numpy()) < 1.003 * error


UNBIASED_64 = [("drive:block=0", 0.010), ("eden:bits=2,block=0", 0.0024), ("eden:bits=4,block=0", 1.8e-4)]


UNBIASED_64 += [("quicfl:bits=2,block=0", 0.0045), ("quicfl:block=0", 2.5e-4)]


@pytest.mark.parametrize(("spec", "bound"), UNBIASED_64)
def test_identical_inputs_average_out(spec: str, bound: float) -> None:
    x = vector("student3", 1 << 14)
    assert mean_error(spec, [x] * 64) < bound


def test_a_shared_rotation_seed_spoils_the_average() -> None:
    """The test of the test: EDEN whose workers all use one rotation does not average at all."""
    x = vector("student3", 1 << 14)
    assert mean_error("drive:block=0", [x] * 64, same_seed=True) == pytest.approx(0.58, abs=0.03)


IDENTICAL = [
    ("sign", 0.593, 0.582),
    ("drive:biased=true,block=0", 0.19, 0.135),
    ("drive:block=0", 0.143, 0.00874),
    ("eden:bits=2,block=0", 0.0332, 0.00203),
    ("eden:bits=2,biased=true,block=0", 0.0396, 0.0153),
    ("turboquant:bits=4,kind=prod,block=0", 0.00493, 0.000308),
    ("quicfl:bits=2,shared=false,block=0", 0.144, 0.00901),
    ("qsgd:bits=4", 0.0703, 0.00421),
    ("thc", 0.0102, 0.00792),
    ("thc:granularity=42,tail=1024", 0.00551, 0.000503),
    ("nvfp4:rounding=nearest", 0.00827, 0.00853),
    ("nf4", 0.0157, 0.0156),
    ("int4:group=32,rounding=nearest", 0.021, 0.0205),
    ("int4:group=32", 0.011, 0.000685),
    ("mxfp4:rounding=nearest,scale=floor", 0.0206, 0.0197),
    ("topk:ratio=0.1", 0.295, 0.307),
]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "four", "sixty_four"), IDENTICAL)
def test_error_of_the_mean_of_identical_inputs(spec: str, four: float, sixty_four: float) -> None:
    x = vector("student3", 1 << 14)
    # un-rotated codecs depend on the one largest value of the vector, which was another draw
    allowed = 0.3 if spec.startswith("qsgd") else 0.15
    assert mean_error(spec, [x] * 4, trials=4) == pytest.approx(four, rel=allowed)
    assert mean_error(spec, [x] * 64, trials=2) == pytest.approx(sixty_four, rel=allowed)
