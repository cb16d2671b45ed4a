"""The compiled loops give the same bytes as the plain ones, and torch.add's own sums."""

import pytest
import torch

from farflung import compress
from farflung.compress import fast, masks
from farflung.compress.rotation import hadamard
from farflung.compress.wire import Reader

pytest.importorskip("numba")

SPECS = [
    "cocktail",
    "cocktail:random=1.0,top=0.01",
    "cocktail:mask=bitmap",
    "cocktail:top=0.05,random=0.5",
    "eden",
    "drive",
]
SPECS += [
    "int4:rounding=nearest",
    "int4:rounding=nearest,group=32",
    "int4",
    "tile",
    "thc",
    "topk:ratio=0.2",
    "eden:bits=3",
]


def results(spec: str) -> list[torch.Tensor | bytes]:
    out: list[torch.Tensor | bytes] = []
    for size in (1, 127, 1000, 4099, 300_001):
        torch.manual_seed(size)
        x = torch.randn(size) * torch.exp(2 * torch.randn(size))
        for vector in (x, torch.ones(size), torch.zeros(size), x.round()):
            blob = compress.make(spec).encode(vector, seed=4, step=7)
            total = torch.linspace(-1, 1, size)
            compress.add(blob, total, 0.3)
            out += [blob, compress.decode(blob), total]
    return out


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_bits(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = results(spec)
    monkeypatch.setattr(fast, "available", lambda: False)
    for one, other in zip(quick, results(spec), strict=True):
        assert one == other if isinstance(one, bytes) else torch.equal(one, other)


def test_hadamard(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 4096)
    quick = [hadamard(x[:, :size].contiguous()) for size in (1, 2, 4, 64, 4096)]
    monkeypatch.setattr(fast, "available", lambda: False)
    for size, result in zip((1, 2, 4, 64, 4096), quick, strict=True):
        assert torch.equal(result, hadamard(x[:, :size].contiguous()))


def test_not_finite_is_found_anywhere() -> None:
    for at in (0, 299_999, 123_456):
        x = torch.randn(300_000)
        x[at] = float("nan")
        with pytest.raises(compress.CodecError, match="1 of 300000 values are not finite"):
            compress.make("cocktail").encode(x)


def test_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = torch.randperm(5000)[:900].sort().values.numpy()
    quick = masks.encode(positions, 5000, "rice")
    assert (masks.decode(Reader(quick), 900, 5000) == positions).all()
    monkeypatch.setattr(fast, "available", lambda: False)
    assert masks.encode(positions, 5000, "rice") == quick
