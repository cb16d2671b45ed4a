"""The codec of updates changes at a view's edge: what the one before had left to say is said with the next."""

import pytest
import torch

from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.protocol.messages import Decide, Part, RoundPlan
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section

NUMEL = 512
PLAN = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), (Part(0, "a", 0, NUMEL, 0),), "publishers", False)


def section_of(delta):
    return Section(Layout.of("stage-0", {"w": (NUMEL,)}), False, Kept(), torch.device("cpu"), delta)


def exchange(section, codec, gradient):
    return Exchange(section, PLAN, "a", codec, gradient=gradient, seed=7)


def said(one, round):
    """What a contribution of this node carries, by itself."""
    own = one.contributions(round)
    result, refused = one.decide(round, Decide(0, ((0, own[0]),)))
    assert not refused
    one.check(round, {0: result}, {})
    return torch.cat([piece.values().clone() for _, piece in one.updates(round, {0: result}, {})])


@pytest.mark.parametrize("after", ["none", "int8"])
def test_gradients(after):
    section = section_of(False)
    section.grad = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    first = exchange(section, "topk:ratio=0.1", True)
    said(first, 1)
    first.commit_gradient()
    left = section.feedback.clone()
    assert 0.5 * section.grad.norm() < left.norm() < section.grad.norm()
    second = exchange(section, after, True)
    torch.testing.assert_close(said(second, 2), section.grad + left, rtol=0, atol=0.05)
    second.commit_gradient()
    third = said(exchange(section, after, True), 3)
    torch.testing.assert_close(third, section.grad, rtol=0, atol=0.1)  # once, and not again


def test_an_explicit_error_feedback_goes_back_into_x():
    section = section_of(True)
    section.x.copy_(section.g)
    section.feedback = torch.ones(NUMEL)
    exchange(section, "cocktail:random=0.5,top=0.3,bits=4", False)
    assert section.feedback is None and torch.equal(section.x, section.g + 1)
    section.feedback = torch.ones(NUMEL)
    exchange(section, "chunked_topk:k=512,bits=2,feedback=true", False)
    assert section.feedback is not None
