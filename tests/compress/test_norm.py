"""The norm of what a blob stands for, without the vector."""

import pytest
import torch

from farflung import compress
from farflung.compress.sparsifiers import masks, masks_there


@pytest.mark.parametrize(
    "spec",
    ["none", "fp16", "int8", "int4:group=9", "int2:group=11", "topk:ratio=0.05", "cocktail", "eden:bits=2", "sign"],
)
def test_is_that_of_the_decoded_values(spec):
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    blob = compress.make(spec).encode(x, seed=3, step=2)
    decoded = compress.decode(blob)
    assert compress.norm(blob, x.numel()) == pytest.approx(float(decoded.norm()), rel=1e-5)
    into = torch.full_like(x, 7.0)
    compress.decode_into(blob, into)
    assert torch.equal(into, decoded)


@pytest.mark.parametrize("spec", ["none", "fp16", "bf16", "int8", "cocktail"])
def test_a_known_blob_gives_the_same_bits(spec):
    x = torch.randn(150_001, generator=torch.Generator().manual_seed(1))
    blob = bytearray(compress.make(spec).encode(x, seed=3, step=2))
    checked, known = x.clone(), x.clone()
    compress.add(blob, checked, 0.3)
    compress.add(blob, known, 0.3, known=True)
    assert torch.equal(checked, known)
    product = compress.decode(blob) * torch.tensor(0.3)
    assert torch.equal(checked, x + product)


@pytest.mark.parametrize("spec", ["none", "fp16", "bf16", "int8", "cocktail", "eden"])
def test_a_weight_of_zero_adds_nothing(spec):
    x = torch.randn(150_001, generator=torch.Generator().manual_seed(1))
    total = x.clone()
    compress.add(compress.make(spec).encode(x), total, 0.0)
    assert torch.equal(total, x)


@pytest.mark.parametrize("spec", ["bits=4", "bits=2", "bits=8", "bits=3", "values=log", "random=1.0,top=1.0"])
@pytest.mark.parametrize("count", [30_001, 129, 1])
def test_cocktails_norm_needs_no_position(spec, count, monkeypatch):
    x = torch.randn(count, generator=torch.Generator().manual_seed(count))
    blob = compress.make("cocktail:" + spec).encode(x, seed=3, step=2)
    wanted = float(compress.decode(blob).norm())
    for module in (masks, masks_there):
        monkeypatch.setattr(module, "decode", None)
    assert compress.norm(blob, count) == pytest.approx(wanted, rel=1e-5)


def test_bytes_that_make_no_sense():
    blob = compress.make("none").encode(torch.ones(10))
    with pytest.raises(compress.CodecError, match="10 elements, 11 are expected"):
        compress.norm(blob, 11)
    with pytest.raises(compress.CodecError, match="not finite"):
        compress.norm(compress.make("none").encode(torch.full((10,), 1e30)), 10)
