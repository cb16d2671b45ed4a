"""Promises at the ends: finite numbers stay finite, and error feedback is refused where it would grow."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung import compress
from farflung.compress import CodecError, ddp
from farflung.compress.cpu import dispatch as fast
from farflung.compress.primitives import scales
from farflung.compress.stateful.feedback import Feedback

LARGEST = torch.finfo(torch.float32).max
SPECS = [name for name in compress.names() if name not in ("fp16", "bf16")]  # they refuse what they can't hold
SPECS += ["int8:rounding=nearest", "int8:scale=32", "int4:scale=32,rounding=nearest", "cocktail:random=1.0,top=1.0"]
SPECS += ["cocktail:random=1.0,top=1.0,bits=8", "cocktail:random=1.0,top=1.0,values=log"]
GROWING = ["eden:bits=0.5", "terngrad", "int2", "quicfl:bits=1", "qsgd:norm=l2", "avq:bits=2", "randomk:scale=true"]


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=8)
@given(share=st.floats(0.9, 1.0), seed=st.integers(0, 99))
def test_the_largest_numbers_decode_to_finite_ones(spec: str, share: float, seed: int) -> None:
    x = torch.randn(700, generator=torch.Generator().manual_seed(seed)).sign() * (share * LARGEST)
    for step in (0, 1):
        y = compress.decode(compress.make(spec).encode(x, seed=seed, step=step))
        assert bool(torch.isfinite(y).all())


@pytest.mark.parametrize("spec", ["int8", "int8:scale=32", "int4:rounding=nearest", "int2"])
def test_the_loops_hold_steps_back_as_torch_does(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((fast.LEAST,), LARGEST)
    blob = compress.make(spec).encode(x, seed=1)
    assert bool(torch.isfinite(compress.decode(blob)).all())
    monkeypatch.setattr(fast, "available", lambda: False)
    assert compress.make(spec).encode(x, seed=1) == blob


def test_the_kernels_limit_is_that_of_the_scales() -> None:
    for top in (1, 7, 127):
        quotient = torch.tensor(LARGEST) / torch.tensor(float(top))
        assert int(quotient.view(torch.int32)) >> scales.LOW == scales.most(top)


@pytest.mark.parametrize("spec", GROWING)
def test_feedback_that_would_grow_is_refused(spec: str) -> None:
    with pytest.raises(CodecError, match="larger than its input"):
        Feedback(spec)
    with pytest.raises(CodecError, match="larger than its input"):
        ddp.State(spec, feedback=True)


def test_a_job_whose_feedback_would_grow_is_refused() -> None:
    for spec in ("eden:bits=0.5,feedback=true", "int2:feedback=true", "terngrad:clip=2.5"):
        with pytest.raises(CodecError, match="larger than its input"):
            compress.check(spec, "gradient")
    assert compress.check("eden:bits=0.5", "gradient")


def test_the_first_step_that_ddp_skips_is_said() -> None:
    state = ddp.State("int8")
    parameter = torch.nn.Parameter(torch.zeros(8))

    def step(value: float) -> torch.Tensor:
        buffer = torch.full((8,), value)
        bucket = SimpleNamespace(
            buffer=lambda: buffer, parameters=lambda: [parameter], index=lambda: 0, is_last=lambda: True
        )
        return state.submit(bucket).wait()

    assert torch.allclose(step(1.0), torch.ones(8), atol=0.02)
    with pytest.warns(RuntimeWarning, match="step 1: a gradient was not finite"):
        assert bool(torch.isinf(step(float("inf"))).all())
    step(float("nan"))  # no second warning, which would be an error here
    assert state.skipped == 2
