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
REFUSING = ("fp16", "bf16", "quicfl", "thc")  # what they can't hold
SPECS = [name for name in compress.names() if name not in REFUSING]
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


def test_intsgd_cuts_no_spike_and_says_what_it_may_cut() -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 1e-3
    x[7] = 10.0
    codec = compress.make("intsgd:gain=20")
    found = torch.stack([compress.decode(codec.encode(x, step=step))[7] for step in range(50)])
    assert abs(float(found.mean()) - 10) < 0.05
    assert abs(float(compress.simulate("intsgd:gain=20", [x, x, x]).mean[7]) - 10) < 0.1
    assert not compress.traits_of("intsgd").unbiased and compress.traits_of("intsgd:rule=max").unbiased
    with pytest.raises(CodecError, match="add feedback=true"):
        compress.check("intsgd", "gradient")
    assert compress.check("intsgd:feedback=true", "gradient") and compress.check("intsgd", "update")


@pytest.mark.parametrize("spec", ["quicfl", "quicfl:shared=false", "thc", "thc:block=256"])
def test_a_length_beyond_fp32_is_refused(spec: str) -> None:
    with pytest.raises(CodecError, match="norm of a block is beyond fp32"):
        compress.make(spec).encode(torch.full((700,), 1e38))


@pytest.mark.parametrize("spec", ["rotq", "dynamiq"])
def test_rounds_of_several_hops_do_not_depend_on_the_scale(spec: str) -> None:
    x = [torch.randn(2048, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    for one in x:
        one[:256] *= 30
    errors = []
    for power in (-90, -40, 0, 40, 110):
        mean = compress.simulate(spec, [one * 2.0**power for one in x]).mean * 2.0**-power
        errors.append(float((mean - torch.stack(x).mean(0)).square().sum()))
    assert max(errors) < 1.02 * min(errors)
    with pytest.raises(CodecError, match="norm of a block is beyond fp32"):
        compress.simulate("rotq", [torch.full((256,), LARGEST)] * 2)


@pytest.mark.parametrize("spec", ["rotq:bits=3", "rotq", "dynamiq:bits=4", "dynamiq"])
def test_a_budget_is_spent(spec: str) -> None:
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(3)) * torch.linspace(0.1, 4, 1 << 16)
    bits = 8 * (len(compress.make(spec).encode(x)) - 40) / len(x)
    assert 0.99 < bits / compress.parse(spec).real("bits") <= 1.0


def test_docofl_spends_eight_bits_too() -> None:
    """255 levels were its most, which have 7 bits of entropy where values are normal."""
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(3))
    bits, errors = [], []
    for budget in (6, 7, 8):
        blob = compress.make(f"docofl:bits={budget}").encode(x, seed=1)
        bits.append(8 * len(blob) / len(x))
        errors.append(float((compress.decode(blob) - x).square().mean()))
    assert all(0.97 < found / budget < 1.01 for found, budget in zip(bits, (6, 7, 8), strict=True)), bits
    assert errors[0] > 3.5 * errors[1] > 12 * errors[2]


def test_feedback_that_waits_is_said_where_an_optimiser_follows() -> None:
    with pytest.warns(RuntimeWarning, match=r"once in 10 steps.*below a 20th"):
        ddp.State("cocktail:feedback=true")
    with pytest.warns(RuntimeWarning, match=r"once in 100 steps"):
        ddp.State("randomk:feedback=true")
    ddp.State("cocktail:random=0.5,feedback=true")  # a warning would be an error here


def test_sign_has_a_size_for_each_layer() -> None:
    state = ddp.State("sign")
    large, small = torch.nn.Parameter(torch.zeros(8)), torch.nn.Parameter(torch.zeros(8))
    buffer = torch.cat([torch.full((8,), 100.0), torch.full((8,), 0.01)])
    bucket = SimpleNamespace(
        buffer=lambda: buffer, parameters=lambda: [large, small], index=lambda: 0, is_last=lambda: True
    )
    assert torch.allclose(state.submit(bucket).wait(), buffer)
