"""Tensors of a device without float64 (Metal): codecs compute on the CPU, and the bits are the same."""

import pytest
import torch
from torch.utils._pytree import tree_map

from farflung import compress
from farflung.compress.gpu import dispatch as gpu


class Metal(torch.Tensor):
    """A CPU tensor that says it is elsewhere ("meta", which every torch knows) and refuses float64, as Metal does."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device="meta")

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        leaves = keywords.get("device") is not None and torch.device(keywords["device"]).type == "cpu"

        def plain(value):
            return value.inner if isinstance(value, Metal) else value

        result = function(*tree_map(plain, arguments), **tree_map(plain, keywords))
        if function is torch.ops.aten.copy_.default:
            return arguments[0]

        def wrapped(value):
            if isinstance(value, torch.Tensor) and not leaves:
                if value.dtype == torch.float64:
                    raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
                return Metal(value)
            return value

        return tree_map(wrapped, result)


SPECS = "none bf16 int8 int4 cocktail:random=0.5,top=0.2 topk:ratio=0.1 chunked_topk eden:bits=4 tile sign quicfl nf4"


@pytest.mark.parametrize("spec", SPECS.split())
def test_the_same_bits_as_on_the_cpu(spec):
    values = torch.randn(5000, generator=torch.Generator().manual_seed(3))
    codec, far = compress.make(spec), Metal(values.clone())
    with pytest.raises(TypeError, match="float64"):
        far.double()
    blob = codec.encode(far, seed=5, step=2)
    assert blob == codec.encode(values, seed=5, step=2)
    near, out = torch.ones(5000), Metal(torch.ones(5000))
    compress.add(blob, near, 0.3)
    compress.add(blob, out, 0.3)
    assert torch.equal(near, out.inner)
    compress.decode_into(blob, out)
    assert torch.equal(out.inner, compress.decode(blob).view(-1))


def test_the_kernels_are_for_cuda_alone(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    gpu._installed.cache_clear()
    try:
        assert not gpu.available(torch.device("cuda:0"))
    finally:
        gpu._installed.cache_clear()
