"""The compiled loops give the same bytes as the plain ones, and torch.add's own sums."""

import pytest
import torch

from farflung import compress
from farflung.compress.blobs.wire import Reader
from farflung.compress.cpu import dispatch as fast
from farflung.compress.primitives import philox
from farflung.compress.primitives.key import Key
from farflung.compress.primitives.rotation import hadamard
from farflung.compress.sparsifiers import masks

pytest.importorskip("numba")

SPECS = """none bf16 cocktail cocktail:random=1.0,top=0.01 cocktail:mask=bitmap cocktail:top=0.05,random=0.5,run=128
cocktail:random=0.9,top=0.9 eden drive eden:bits=3 eden:bits=5,block=256 int4:rounding=nearest
int4:rounding=nearest,group=32 int4 int4:group=100,scale=32 int2 int2:rounding=nearest,group=9 int8
int8:rounding=nearest tile thc topk:ratio=0.2 qsgd qsgd:bits=7,bucket=0 qsgd:norm=l2 nuqsgd nuqsgd:bits=8,norm=l2 mxfp8
mxfp8:format=e5m2,rounding=nearest mxfp6 mxfp6:scale=floor mxfp4:rounding=nearest nvfp4 nvfp4:rounding=nearest nf4
nf4:block=100 tile:rounding=stochastic,bits=3,tile=16 aqsgd aqsgd:first_bits=3,group=100 chunked_topk
chunked_topk:k=4096
thc:block=256,bits=8,granularity=0 quicfl quicfl:bits=2,block=0 quicfl:shared=false
eden:bits=6 eden:bits=8 eden:biased=true eden:bits=7,biased=true drive:biased=true turboquant
turboquant:bits=8 sign sign:scale=two sign:scale=rms terngrad terngrad:clip=2.5 natural global_qsgd global_qsgd:bits=4
global_exp intsgd intsgd:rule=max int8_tensor int8_channel rotq rotq:bits=6 rotq:bits=2.2 dynamiq dynamiq:bits=3
eden:bits=1.5 eden:bits=0.5 eden:bits=3.4,biased=true eden:bits=6.5 eden:bits=2
turboquant:kind=prod turboquant:kind=prod,bits=1 avq avq:bits=1 avq:bits=3 avq:bits=6 thc:bits=3 docofl docofl:bits=2
docofl:bits=8
powersgd powersgd:rank=5 powersgd:factors=16 demo demo:k=100""".split()  # noqa: SIM905


def results(spec: str) -> list[torch.Tensor | bytes]:
    out: list[torch.Tensor | bytes] = []
    few = (1, 127, 1000, 4099) if "cocktail" in spec or "topk" in spec else ()  # where loops take short vectors too
    for size in (*few, 133_001):
        torch.manual_seed(size)
        x = torch.randn(size) * torch.exp(2 * torch.randn(size))
        for vector in (x, torch.ones(size), torch.zeros(size), x.round(), x * 2.0**-130, x.double() * 2.0**110):
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


def test_every_half(monkeypatch: pytest.MonkeyPatch) -> None:
    words = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    x = words[torch.isfinite(words)].repeat(3).float()
    blob, quick = compress.make("fp16").encode(x), torch.ones_like(x)
    compress.add(blob, quick, 0.3)
    assert torch.equal(compress.decode(blob), x)
    monkeypatch.setattr(fast, "available", lambda: False)
    slow = torch.ones_like(x)
    compress.add(blob, slow, 0.3)
    assert torch.equal(quick, slow)


def test_hadamard(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sizes = torch.randn(5, 8192), [1 << power for power in range(14)]  # all ways to group the stages
    monkeypatch.setattr(fast, "LEAST", 1)
    quick = [hadamard(x[:, :size].contiguous()) for size in sizes]
    monkeypatch.setattr(fast, "available", lambda: False)
    for size, result in zip(sizes, quick, strict=True):
        assert torch.equal(result, hadamard(x[:, :size].contiguous()))


@pytest.mark.parametrize("spec", ["cocktail:random=0.5", "int4", "int8:rounding=nearest", "eden"])
def test_not_finite_is_found_anywhere(spec: str) -> None:
    for at, value in ((0, float("nan")), (299_999, float("inf")), (123_456, float("-inf"))):
        x = torch.randn(300_000)
        x[at] = value
        with pytest.raises(compress.CodecError, match="1 of 300000 values are not finite"):
            compress.make(spec).encode(x)


def test_philox_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    key, starts = Key(0xFEDCBA9876543210, 0xFFFFFFFF), (0, 5, 511, (1 << 34) + 77)
    quick = [(philox.words(200_000, key, 9, start), philox.uniform(200_000, key, 9, start)) for start in starts]
    monkeypatch.setattr(fast, "available", lambda: False)
    for start, (words, uniform) in zip(starts, quick, strict=True):
        assert torch.equal(words, philox.words(200_000, key, 9, start))
        assert torch.equal(uniform, philox.uniform(200_000, key, 9, start))


def test_a_change_of_a_mask_is_refused_as_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    count, size = 200_000, 1_000_000
    blob = bytearray(masks.encode(torch.randperm(size)[:count].sort().values.numpy(), size, "rice"))
    for place in (1, 5, 1000, len(blob) // 2, len(blob) - 1):
        outcomes = []
        for there in (True, False):
            with monkeypatch.context() as patch:
                if not there:
                    patch.setattr(fast, "available", lambda: False)
                changed = blob.copy()
                changed[place] ^= 0x10
                try:
                    outcomes.append(masks.decode(Reader(changed), count, size).tolist())
                except compress.CodecError:
                    outcomes.append(None)
        assert outcomes[0] == outcomes[1]


def test_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = torch.randperm(5000)[:900].sort().values.numpy()
    quick = masks.encode(positions, 5000, "rice")
    assert (masks.decode(Reader(quick), 900, 5000) == positions).all()
    monkeypatch.setattr(fast, "available", lambda: False)
    assert masks.encode(positions, 5000, "rice") == quick
