"""Rounds of codecs that sum, of codecs with an explicit error feedback, and the error feedback of gradients."""

import torch
from round_group import NUMEL, SHAPES, Group, section_of

from farflung import compress
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.arithmetic.update import Update
from farflung.node.rounds.protocol.messages import Decide, Part, Result, RoundPlan
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section

EXPLICIT = "chunked_topk:k=512,bits=2,feedback=true"


def test_with_an_explicit_error_feedback_x_begins_again_at_g():
    group = Group("publishers", EXPLICIT, [1.0, 2.0])
    for link in group.links.values():
        link.begin()
    group.end_round()
    for link in group.links.values():
        section = link.exchange.section
        torch.testing.assert_close(section.x, section.g, rtol=0, atol=1e-6)
        assert float(section.feedback.abs().max()) > 0.1


def test_with_an_explicit_error_feedback_what_x_learns_in_flight_stays_in_it():
    group = Group("publishers", EXPLICIT, [1.0, 2.0])
    step = torch.randn(NUMEL, generator=torch.Generator().manual_seed(4)) * 0.01
    for link in group.links.values():
        link.begin()
        for _ in range(2):
            link.exchange.x_moves()
            link.exchange.section.x.add_(step)
    before = group.total()
    group.end_round()
    for link in group.links.values():
        section = link.exchange.section
        torch.testing.assert_close(section.x, section.g + 2 * step, rtol=0, atol=1e-6)
    torch.testing.assert_close(group.total(), before, rtol=0, atol=3e-6)


def test_unequal_shares_do_not_drive_the_members_of_a_summed_codec_apart():
    group = Group("phases", "powersgd:rank=2", [5.0, 1.0])
    step = torch.randn(NUMEL, generator=torch.Generator().manual_seed(3)) * 0.01
    for section in (link.exchange.section for link in group.links.values()):
        section.x.copy_(section.g)
    for _ in range(40):
        for link in group.links.values():
            link.exchange.section.x.add_(step)
            link.begin()
        group.end_round()
    sections = [link.exchange.section for link in group.links.values()]
    assert float((sections[0].x - sections[1].x).abs().max()) < 1e-4
    assert float((sections[1].x - sections[1].g).norm()) < 10 * float(step.norm())


def test_another_codec_takes_over_what_the_one_before_had_kept():
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), (Part(0, "a", 0, NUMEL),), "all_to_all", True)
    section = Section(Layout.of("stage-0", SHAPES), True, Kept(), torch.device("cpu"))
    kept = section.feedback = torch.ones(NUMEL)
    exchange = Exchange(section, plan, "a", "none", gradient=True, seed=7)
    other = Exchange(section_of(torch.zeros(NUMEL)), plan, "b", "none", gradient=True, seed=7).contributions(1)[0]
    for sent in (kept, torch.zeros(NUMEL)):  # in the first step, and never again
        own = exchange.contributions(1)[0]
        both = Result(0, (0, 1), (own.digest, other.digest))
        ((_, update),) = exchange.updates(1, {0: both}, {(0, 0): own, (0, 1): other})
        torch.testing.assert_close(update.values(), sent)
        ((_, update),) = exchange.updates(1, {0: Result(0, (0,), (own.digest,))}, {(0, 0): own})
        assert bool(torch.isnan(update.values()).all()), "a share of the step is missing"
        exchange.commit_gradient()
    local = section_of(torch.zeros(NUMEL))
    local.feedback = kept
    Exchange(local, plan, "a", "none", seed=7)
    assert local.feedback is None and torch.equal(local.x, kept)


def test_a_commit_puts_what_the_encoding_lost_into_the_error_feedback_and_the_sum_into_the_gradient():
    section = section_of(torch.zeros(NUMEL))
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), (Part(0, "a", 0, NUMEL),), "all_to_all", True)
    exchange = Exchange(section, plan, "a", "int4", gradient=True, seed=7)
    gradient = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    section.grad.copy_(gradient)
    sent = exchange.contributions(1)[0]
    assert exchange.carries
    exchange.commit_gradient([(slice(0, NUMEL), Update(torch.full((NUMEL,), 100.0)))])
    lost = gradient - compress.decode(sent.payload[0])
    torch.testing.assert_close(exchange.section.feedback, lost)
    assert float(section.grad.min()) == 100.0


def test_error_feedback_of_gradients_outlives_the_view_and_takes_the_publishers_error():
    section = section_of(torch.zeros(NUMEL))
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), (Part(0, "a", 0, NUMEL),), "publishers", True)
    exchange = Exchange(section, plan, "a", "int4", gradient=True, seed=7)
    section.grad.copy_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(1)))
    own = exchange.contributions(1)[0]
    other = Exchange(section_of(torch.zeros(NUMEL)), plan, "b", "int4", gradient=True, seed=7)
    other.section.grad.copy_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(2)))
    result, refused = exchange.decide(1, Decide(0, ((0, own), (1, other.contributions(1)[0]))))
    assert not refused
    exchange.commit_gradient()
    kept = section.feedback + exchange.errors[0]
    assert float(exchange.errors[0].abs().max()) > 0
    exchange.fold_errors()
    torch.testing.assert_close(section.feedback, kept)
    again = Exchange(section, plan, "a", "none", gradient=True, seed=7)  # the next view of the same section
    section.grad.zero_()
    sent = again.contributions(2)[0]
    torch.testing.assert_close(compress.decode(sent.payload[0]), kept)
    assert result.contributors == (0, 1)
