"""Codecs that say that they are unbiased are, by a z-test; those that say that they are not, are not."""

import pytest
import torch

from farflung import compress
from farflung.compress import traits_of
from farflung.compress.primitives.vectors import vector

VARIANTS = ["mxfp8:format=e5m2", "mxfp6:format=e3m2", "turboquant:kind=prod,bits=2", "quicfl:shared=false,bits=2"]
VARIANTS += ["randomk:ratio=0.25,scale=true", "tile:rounding=stochastic", "eden:bits=0.5", "eden:bits=1.5", "drive"]
VARIANTS += ["avq:rotate=true", "int8", "int4:group=32", "nuqsgd:norm=l2", "qsgd:norm=l2,bits=3", "quicfl:bits=1"]
UNBIASED = [n for n in compress.names() if traits_of(n).unbiased and n != "none"] + VARIANTS


def z_score(spec: str, x: torch.Tensor, trials: int) -> float:
    """How many standard errors the mean projection of the decoded vectors on x is from 1."""
    codec = compress.make(spec)
    energy = float(x.double().square().sum())
    found = []
    for trial in range(trials):
        y = compress.decode(codec.encode(x, seed=trial * 1000003 + 17, step=trial, rank=trial))
        found.append(float((y.double() * x.double()).sum()) / energy)
    values = torch.tensor(found, dtype=torch.float64)
    return float((values.mean() - 1) / (values.std() / trials**0.5 + 1e-6))


@pytest.mark.parametrize("spec", sorted(set(UNBIASED)))
def test_unbiased(spec: str) -> None:
    assert abs(z_score(spec, vector("student3", 1024, 5), 50)) < 4.5


@pytest.mark.parametrize(
    "spec", ["sign:scale=rms", "terngrad:clip=2.5", "topk:ratio=0.1", "eden:bits=1,biased=true", "thc"]
)
def test_the_test_sees_a_bias(spec: str) -> None:
    assert abs(z_score(spec, vector("student3", 2048, 5), 60)) > 6


@pytest.mark.parametrize("spec", ["mxfp4", "mxfp8", "nvfp4", "int4", "dynamiq", "rotq:bits=3"])
def test_errors_average_out(spec: str) -> None:
    """The mean of 256 decoded vectors: a bias of a format's scale would be a floor."""
    x, codec = vector("student3", 2048, 1), compress.make(spec)
    one, mean = 0.0, torch.zeros(2048)
    for trial in range(256):
        y = compress.decode(codec.encode(x, seed=1, step=trial))
        one += float((y - x).square().sum()) / 256
        mean += y / 256
    assert float((mean - x).square().sum()) < 2.0 * one / 256
