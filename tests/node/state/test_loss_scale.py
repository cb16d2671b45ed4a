"""The loss scale of fp16: torch's own, event for event."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farflung.node.state.files.checkpoint import loss_scale_of
from farflung.node.state.loss_scale import FIRST, LossScale
from farflung.node.state.stage_state import StageState
from farflung.proto.words.loss_scale import LEAST, MOST, is_scale


@given(finite=st.lists(st.booleans(), max_size=60), patience=st.integers(1, 5), first=st.integers(-10, 30))
def test_it_is_that_of_torch(finite, patience, first):
    own = LossScale(2.0**first)
    scaler = torch.amp.GradScaler("cpu", init_scale=own.scale, growth_interval=patience)
    parameter = torch.nn.Parameter(torch.zeros(1))
    for one in finite:
        parameter.grad = torch.tensor([1.0 if one else torch.inf]) * scaler.scale(torch.ones(()))
        scaler.step(torch.optim.SGD([parameter], 0.0))
        scaler.update()
        own = own.after(one, patience)
        assert LEAST <= own.scale <= MOST and is_scale(own.scale)
        if not LEAST < scaler.get_scale() < MOST:
            return  # torch's has no ends
        assert own.scale == scaler.get_scale()


@given(finite=st.lists(st.booleans(), max_size=200), patience=st.integers(1, 3))
def test_it_stays_a_power_of_two_in_its_range(finite, patience):
    state = LossScale(FIRST)
    for one in finite:
        state = state.after(one, patience)
        assert is_scale(state.scale) and 0 <= state.good < patience
    assert state.is_least == (state.scale == LEAST)


def test_a_number_of_somebody_else():
    assert not any(is_scale(one) for one in (0.0, 3.0, -2.0, float("nan"), float("inf"), 2.0**-15, 2.0**41))
    assert loss_scale_of({}) is None and loss_scale_of({"loss_scale": [4.0, 7, 1]}) == LossScale(4.0, 7, 1)
    for wrong in ([3.0, 1, 0], [4.0, -1, 0], [4.0, 1], "abc", None, [None, 1, 0]):
        with pytest.raises((ValueError, TypeError)):
            loss_scale_of({"loss_scale": wrong})


def test_a_scale_in_a_gradient_is_told_apart():
    from farflung.node.pipeline.runner import StageRunner

    spoiled = []
    made = SimpleNamespace(
        _precision="fp16", _neighbours=SimpleNamespace(spoiled=lambda sender, why: spoiled.append((sender, why)))
    )
    for scale, before in ((8.0, 0.0), (8.0, 8.0), (8.0, 4.0), (0.0, 0.0), (3.0, 0.0)):
        tally, mail = SimpleNamespace(loss_scale=before), (0, SimpleNamespace(loss_scale=scale, step=5), b"")
        StageRunner._learn_scale(made, SimpleNamespace(after="b"), mail, tally)
    assert spoiled == [("b", f"a gradient of step 5 with loss scale {one}") for one in (8, 0, 3)]


def test_more_dropped_steps_than_the_run_has_do_not_end_the_optimiser():
    state = SimpleNamespace(loss_scale=LossScale(FIRST, dropped=2**32 - 1))
    assert StageState.taken(state, 5) == 1
    state.loss_scale = LossScale(FIRST, dropped=2)
    assert StageState.taken(state, 5) == 3


def test_a_scale_at_its_least_is_back_in_a_few_thousand_steps():
    """By torch's rule it would take 60,000."""
    state, doubled = LossScale(LEAST), []
    for step in range(1, 6000):
        before, state = state, state.after(True, 2000)
        doubled += [step] if state.scale != before.scale else []
    assert doubled[:6] == [2000, 3000, 3500, 3750, 3875, 3939] and doubled[6] - doubled[5] == 64
    assert len(doubled) == 30 and doubled[-1] < 5500
    assert state.scale == FIRST and state.good == 5999 - doubled[-1], "from there on as torch's"
    fallen = state.after(False, 2000).after(True, 2000)
    assert (fallen.scale, fallen.good, fallen.dropped) == (FIRST / 2, 1, 1)


@given(finite=st.lists(st.booleans(), max_size=400), patience=st.sampled_from([1, 3, 64, 100, 2000]))
def test_what_a_run_can_have_is_believed(finite, patience):
    state = LossScale(FIRST)
    for one in finite:
        state = state.after(one, patience)
    assert state.possible(len(finite), patience) == state


def test_what_no_run_can_have_is_not():
    """A holder that is alone is believed by a joiner."""
    assert LossScale(LEAST, 9, 3).possible(100, 2000) == LossScale(FIRST / 8, 9, 3)
    assert LossScale(MOST, 2**32 - 1, 2**32 - 1).possible(100, 2000) == LossScale(FIRST, 0, 100)
    assert LossScale(MOST, 5, 0).possible(130, 2000) == LossScale(FIRST * 4, 5, 0)
