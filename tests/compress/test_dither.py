"""Members of a round share their dither: errors cancel in the sum, nothing is biased, absent members leave no trace."""

import pytest
import torch

from farflung import compress
from farflung.compress.cpu import dispatch as fast
from farflung.compress.primitives import philox
from farflung.compress.primitives.key import Key

STOCHASTIC = ["int8", "int4", "mxfp4", "nvfp4", "qsgd", "nuqsgd", "natural", "tile:rounding=stochastic"]
STOCHASTIC += ["avq", "docofl"]
STOCHASTIC += ["global_qsgd:bits=4", "intsgd:rule=max", "thc:bits=8,granularity=0,tail=1048576", "quicfl:shared=false"]


def decoded(spec: str, x: list[torch.Tensor], step: int, shared: bool, ranks: list[int] | None = None) -> torch.Tensor:
    codec, ranks = compress.make(spec), ranks or list(range(len(x)))
    members = max(ranks) + 1 if shared else 1
    blobs = [codec.encode(one, 7, step, rank, members) for one, rank in zip(x, ranks, strict=True)]
    return torch.stack([compress.decode(blob) for blob in blobs])


def error(spec: str, x: list[torch.Tensor], shared: bool, ranks: list[int] | None = None, steps: int = 4) -> float:
    mean = torch.stack(x).mean(0)
    found = [decoded(spec, x, step, shared, ranks).mean(0) - mean for step in range(steps)]
    return float(torch.stack(found).square().sum()) / steps


@pytest.mark.parametrize("members", [*range(1, 17), 31, 32, 33, 63, 64])
def test_each_member_is_uniform_and_all_are_spread_evenly(members: int) -> None:
    u = torch.stack(
        [philox.uniform(4096, Key(3, 5, rank, members).dither, 0) for rank in range(members)]
    ).double()  # a member's own numbers are as good as anyone's
    assert float((u.mean(1) - 0.5).abs().max()) < 5 / (12 * 4096) ** 0.5
    ordered = u.sort(0).values
    gaps = torch.cat([ordered.diff(dim=0), 1 + ordered[:1] - ordered[-1:]])
    assert float((gaps - 1 / members).abs().max()) < 2.0**-23


@pytest.mark.parametrize("spec", STOCHASTIC)
def test_errors_of_the_same_values_cancel(spec: str) -> None:
    x = [torch.randn(2048, generator=torch.Generator().manual_seed(0))] * 8
    assert error(spec, x, True) < 0.4 * error(spec, x, False)


@pytest.mark.parametrize("members", [2, 3, 5, 16, 64])
@pytest.mark.parametrize("spec", ["int4", "qsgd", "mxfp4"])
def test_errors_of_other_values_are_no_larger(spec: str, members: int) -> None:
    random = torch.Generator().manual_seed(1)
    apart = [torch.randn(2048, generator=random) for _ in range(members)]
    near = [apart[0] + 0.3 * one for one in apart]
    for x in (apart, near):
        assert error(spec, x, True) < 1.1 * error(spec, x, False)


@pytest.mark.parametrize("spec", ["int4", "nuqsgd", "thc:bits=8,granularity=0,tail=1048576"])
def test_it_is_unbiased_also_of_those_who_are_left(spec: str) -> None:
    x = [torch.randn(512, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    mean, total = torch.stack(x).mean(0), torch.zeros(512)
    one = 0.0
    for step in range(200):  # members 1, 2 and 6 of 7
        y = decoded(spec, x, step, True, [1, 2, 6]).mean(0)
        total += y / 200
        one += float((y - mean).square().sum()) / 200
    assert float((total - mean).square().sum()) < 2 * one / 200


@pytest.mark.parametrize("spec", ["int4", "mxfp4", "qsgd", "tile:rounding=stochastic", "thc", "natural"])
def test_the_loops_turn_as_torch_does(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    x, codec = torch.randn(fast.LEAST + 5), compress.make(spec)
    blob = codec.encode(x, 7, 1, 2, 3)
    assert blob != codec.encode(x, 7, 1, 1, 3)
    monkeypatch.setattr(fast, "available", lambda: False)
    assert codec.encode(x, 7, 1, 2, 3) == blob


def test_a_whole_exchange_shares_it() -> None:
    x = [torch.randn(2048, generator=torch.Generator().manual_seed(0))] * 8
    found = compress.simulate("int4", x, seed=3).mean - x[0]
    alone = compress.decode(compress.make("int4").encode(x[0], 3)) - x[0]
    assert float(found.square().sum()) < float(alone.square().sum()) / 8 / 2
