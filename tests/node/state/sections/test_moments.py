"""Moments in bf16, and moments that lie somewhere else than the weights."""

import numpy as np
import pytest
import torch

from farflung.compress.cpu import dispatch as fast
from farflung.node.state.optimizers.optimizers import AdamW, Lamb, OneBitAdam, root, squared_norm
from farflung.node.state.sections import section as sections
from farflung.node.state.sections.moments import STRETCH, Kept, closed, dither, opened, rounded
from farflung.node.state.sections.section import Layout, Section

CPU = torch.device("cpu")
SHAPES = {"matrix": (300, 250), "bias": (77,), "other": (40, 50)}


def test_bf16_is_rounded_up_or_down_and_right_on_average():
    values = torch.randn(500, generator=torch.Generator().manual_seed(1)) * 1e-3
    steps = torch.stack([rounded(values, dither("m", 0, 500, step, CPU)).float() for step in range(2000)])
    assert bool(((steps - values).abs() <= 2**-7 * values.abs()).all())
    assert bool((steps.amin(0) < steps.amax(0)).float().mean() > 0.99)
    assert float(((steps.mean(0) - values) / values.abs()).abs().max()) < 6 * 2**-8 / 2000**0.5
    exact = values.bfloat16().float()
    assert torch.equal(rounded(exact, dither("m", 0, 500, 3, CPU)).float(), exact)


def test_the_dither_is_uniform_and_follows_place_and_step_alone():
    whole = dither("v", 1000, 3 * STRETCH + 5, 9, CPU)
    pieces = [
        dither("v", 1000 + at, min(STRETCH, 3 * STRETCH + 5 - at), 9, CPU) for at in range(0, 3 * STRETCH + 5, STRETCH)
    ]
    assert torch.equal(whole, torch.cat(pieces))
    assert whole.dtype == torch.int32 and int(whole.min()) >= 0 and int(whole.max()) < 1 << 16
    counts = np.bincount(whole.numpy() >> 12, minlength=16)
    assert counts.min() > 0.95 * whole.numel() / 16
    over_steps = torch.tensor([int(dither("v", 0, 1, step, CPU)) for step in range(400)])
    assert over_steps.unique().numel() > 380 and abs(float(over_steps.float().mean()) - 2**15) < 5000
    assert not torch.equal(whole, dither("m", 1000, whole.numel(), 9, CPU))


def test_a_second_moment_follows_small_changes():
    """Rounded to nearest it would stay at 1: a thousandth is less than half of bf16's spacing there."""
    kept = {"v": torch.ones(2000, dtype=torch.bfloat16)}
    for step in range(3000):
        values = opened(kept, CPU)
        values["v"].mul_(0.999).add_(0.001 * 4.0)
        closed(kept, values, 0, step)
    assert float(kept["v"].float().mean()) == pytest.approx(4 - 3 * 0.999**3000, rel=0.01)
    assert float(kept["v"].float().std()) < 0.1 * 4


def trained(optimizer, kept: Kept, steps: int = 4) -> Section:
    section = Section(Layout.of("stage-0", SHAPES), True, kept, CPU)
    random = torch.Generator().manual_seed(7)
    section.g.normal_(generator=random)
    for step in range(1, steps + 1):
        section.grad.normal_(generator=random)
        section.grad[5:900].zero_()  # whose variance stays 0
        optimizer.step(section, step, 1e-2)
    return section


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_moments_that_lie_elsewhere_change_no_bit(kind, monkeypatch):
    optimizer = kind((0.9, 0.95), 1e-8, 0.1)
    near = trained(optimizer, Kept(optimizer.moments))
    moved = []

    def elsewhere(moments, device):
        moved.append(sum(values.nbytes for values in moments.values()))
        return {name: values.to(device, torch.float32, copy=True) for name, values in moments.items()}

    monkeypatch.setattr(sections, "opened", elsewhere)  # as from another device, whose every read is a copy
    far = trained(optimizer, Kept(optimizer.moments, offload=True))
    assert torch.equal(near.x, far.x) and near.fingerprint(True) == far.fingerprint(True)
    assert sum(moved) == 4 * 2 * near.g.nbytes


def test_short_and_whole_stretches_round_alike(monkeypatch):
    optimizer = AdamW((0.9, 0.95), 1e-8, 0.1)
    kept = Kept(optimizer.moments, torch.bfloat16)
    short = trained(optimizer, kept)
    real = Section.stretches
    monkeypatch.setattr(Section, "stretches", lambda self, step: real(self, step, whole=True))  # as on a GPU
    whole = trained(optimizer, kept)
    assert torch.equal(short.x, whole.x) and short.fingerprint(True) == whole.fingerprint(True)
    assert short.moments["m"].nbytes == short.g.nbytes // 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [AdamW, lambda *numbers: OneBitAdam(*numbers, freeze=2)])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_compiled_step_has_the_bits_of_the_plain_one(make, decay, dtype, monkeypatch):
    optimizer = make((0.9, 0.95), 1e-8, decay)
    kept = Kept(optimizer.moments, dtype)
    ends = []
    for compiled in (False, True):
        monkeypatch.setattr(fast, "worth", lambda count, compiled=compiled: compiled)
        ends.append(trained(optimizer, kept))
    plain, quick = ends
    assert torch.equal(plain.x, quick.x) and plain.fingerprint(True) == quick.fingerprint(True)
    assert bool(torch.isfinite(plain.x).all())


def test_square_roots_are_rounded_correctly():
    """As IEEE 754 has it, and so every GPU; a float64 root is exact enough to be rounded once more."""
    values = torch.rand(1 << 20, generator=torch.Generator().manual_seed(2)) * 1e-4
    assert torch.equal(root(values), torch.from_numpy(np.sqrt(values.numpy().astype(np.float64)).astype(np.float32)))


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1e25])
def test_a_squared_norm_is_right_beyond_the_range_of_fp32_squares(scale):
    vector = torch.randn(200_000, generator=torch.Generator().manual_seed(4)) * scale
    assert squared_norm(vector) == pytest.approx(float(vector.double().square().sum()), rel=1e-5)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_squared_norm_says_what_is_not_finite(value):
    vector = torch.ones(100_000)
    vector[70_000] = value
    assert not np.isfinite(squared_norm(vector))
