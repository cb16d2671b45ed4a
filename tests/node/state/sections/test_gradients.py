"""A step's gradients, gathered in flat vectors."""

import gc
import weakref

import pytest
import torch

from farflung.node.state.sections.gradients import Gradients


def stage():
    """Two parameters over a flat vector that holds what an earlier step left, and the vector."""
    flat = torch.full((5,), 7.0)
    parameters = {"a": torch.ones(2, requires_grad=True), "b": torch.ones(3, requires_grad=True)}
    return parameters, flat, Gradients(parameters, {"a": flat[:2], "b": flat[2:]})


def test_the_first_backward_writes_and_further_ones_add():
    parameters, flat, gradients = stage()
    for _ in range(2):
        gradients.begin()
        (2 * parameters["a"].sum() + parameters["a"].prod() + 3 * parameters["b"].sum()).backward()
        assert torch.equal(flat, torch.tensor([3.0, 3.0, 3.0, 3.0, 3.0]))
        (5 * parameters["a"].sum()).backward()
        gradients.end()
        assert torch.equal(flat, torch.tensor([8.0, 8.0, 3.0, 3.0, 3.0]))


def test_what_the_loss_does_not_depend_on_has_a_gradient_of_zero():
    parameters, flat, gradients = stage()
    gradients.begin()
    parameters["a"].sum().backward()
    gradients.end()
    assert torch.equal(flat, torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]))
    gradients.begin()
    gradients.put("b", torch.arange(3.0), 2.0)
    gradients.end()
    assert torch.equal(flat, torch.tensor([0.0, 0.0, 0.0, 2.0, 4.0]))


def test_a_step_that_was_abandoned_leaves_nothing_behind():
    parameters, flat, gradients = stage()
    gradients.begin()
    (9 * parameters["a"].sum()).backward()
    gradients.begin()
    (parameters["a"].sum() + parameters["b"].sum()).backward()
    gradients.end()
    assert torch.equal(flat, torch.ones(5))


def test_one_parameter_does_not_keep_the_others():
    parameters, _, gradients = stage()
    gone = weakref.ref(parameters["b"])
    kept = parameters.pop("a")
    gc.disable()
    try:
        del gradients, parameters
        assert gone() is None and kept.grad is not None
    finally:
        gc.enable()


def test_a_context_tells_of_each_gradient_and_what_it_raises_ends_the_pass():
    parameters, flat, gradients = stage()
    told = []
    gradients.begin()
    with gradients.told(told.append):
        (parameters["a"].prod() + parameters["a"].sum() + parameters["b"].sum()).backward()
    assert sorted(told) == ["a", "b"] and torch.equal(flat, torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0]))

    def refuse(name):
        raise InterruptedError(name)

    with pytest.raises(InterruptedError), gradients.told(refuse):
        parameters["a"].sum().backward()
    gradients.begin()
    (parameters["a"].sum() + parameters["b"].sum()).backward()
    gradients.end()
    assert sorted(told) == ["a", "b"] and torch.equal(flat, torch.ones(5))
