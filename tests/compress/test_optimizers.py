import pytest
import torch

from farflung.compress.optimizers import Lamb, OneBitAdam, ZeroOneAdam

KINDS = [
    (OneBitAdam, {"freeze_step": 20}),
    (ZeroOneAdam, {"freeze_step": 40, "scaler": 4, "local_scaler": 30, "local_limit": 4}),
    (Lamb, {"spec": "sign"}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_one_worker_minimises(kind: type, options: dict) -> None:
    weights = torch.nn.Parameter(torch.tensor([3.0, -2.0, 1.0, 0.5]))
    optimizer = kind([weights], lr=0.02, **options)
    for _ in range(200):
        optimizer.zero_grad()
        weights.square().sum().backward()
        optimizer.step()
    assert float(weights.detach().norm()) < 1.5


@pytest.mark.parametrize(("kind", "options"), KINDS[:2])
def test_coordinates_without_gradient_stay(kind: type, options: dict) -> None:
    """One bit can't say zero: what never had a gradient must not drift."""
    weights = torch.nn.Parameter(torch.tensor([3.0, 7.0]))
    optimizer = kind([weights], lr=0.01, **options)
    for _ in range(300):
        optimizer.zero_grad()
        (weights[0] ** 2).backward()
        optimizer.step()
    assert float(weights[1].detach()) == 7.0


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_saved_optimizer_goes_on_bit_for_bit(kind: type, options: dict) -> None:
    def run(saved_at: int | None) -> torch.Tensor:
        weights = torch.nn.Parameter(torch.tensor([3.0, -2.0, 1.0]))
        optimizer = kind([weights], lr=0.02, **options)
        for step in range(90):
            if step == saved_at:
                state = optimizer.state_dict()
                optimizer = kind([weights], lr=0.02, **options)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            (weights**2 * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
            optimizer.step()
        return weights.detach()

    for saved_at in (10, 30, 70):
        assert torch.equal(run(None), run(saved_at))


def test_an_overflow_is_skipped() -> None:
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = OneBitAdam([weights], freeze_step=2)
    for step in range(6):
        optimizer.zero_grad()
        (weights.sum() * (float("nan") if step == 4 else 1.0)).backward()
        optimizer.step()
    assert bool(torch.isfinite(weights).all()) and optimizer.shared["step"] == 5
