"""The benchmarks of codecs measure what they say, on few numbers; a few mutations of some codecs' blobs."""

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from farflung import compress
from farflung.benchmarks import fuzz_blobs
from farflung.compress.exchange.measurement import mean_error, nmse
from farflung.compress.primitives.vectors import vector


@pytest.fixture(scope="module")
def fidelity() -> Iterator[ModuleType]:
    """The module, which registers a codec: forgotten afterwards, as other tests go through all names."""
    from farflung.benchmarks import fidelity as module

    if "turboquant_qjl" not in compress.names():
        compress.register(module.PublishedProduct)
    yield module
    compress.unregister("turboquant_qjl")


def test_the_published_product_code_is_worse_than_ours(fidelity: ModuleType) -> None:
    x = vector("normal", 128)
    published = nmse("turboquant_qjl:bits=2", x, 8)[0]
    assert published == pytest.approx(0.57, rel=0.3)
    assert nmse("turboquant:bits=2,kind=prod,block=0", x, 8)[0] < 0.6 * published
    y = torch.stack([compress.decode(compress.make("turboquant_qjl:bits=2").encode(x, s)) for s in range(20)]).mean(0)
    assert float((y - x).square().sum() / x.square().sum()) < 3 * published / 20  # unbiased


def test_dividing_before_rounding_loses_bits_with_each_worker(fidelity: ModuleType) -> None:
    x = fidelity.workers(16, "half shared", 1 << 10)
    mean = torch.stack(x).mean(0)
    divided = float((fidelity.divided(x, 1) - mean).square().sum() / mean.square().sum())
    assert divided > 20 * mean_error("global_qsgd", x, 1)


def test_a_first_visit_counts(fidelity: ModuleType) -> None:
    bits, error = fidelity.visits("full", 0.01, 2)
    assert bits == pytest.approx(17.1, abs=0.3) and error < 1e-3  # 32 and 2, with scales
    assert fidelity.visits("int4:rounding=nearest", 0.01, 2)[1] > 10 * error


def test_log_values_lose_where_everything_is_sent(fidelity: ModuleType) -> None:
    x, ratios = vector("normal", 1 << 12), []
    for top in (0.2, 1.0):
        base = f"cocktail:random=1.0,top={top}"
        linear, log = (fidelity.rounding_error(base + more, f"{base},bits=8", x) for more in ("", ",values=log"))
        ratios.append(log / linear)
    assert ratios[0] < 0.5 and ratios[1] > 2


@pytest.mark.parametrize("name", ["int8", "cocktail", "docofl", "thc"])
def test_mutations_of_a_blob_are_decoded_or_refused(name: str) -> None:
    found = fuzz_blobs.tried(name, 60, 7)
    assert not found.failure and found.mutations == 60 and found.refused > 60, found


def test_a_decoder_that_takes_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_blobs, "BYTES", 0)
    assert "MiB" in fuzz_blobs.tried("int8", 5, 7).failure
