"""Residuals in bf16: right on average, the same bits wherever they are computed, and nothing of S lost by them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from far_device import far, far_device, near
from round_group import NUMEL, Group, section_of

from farflung.job.checks.updates import update_mistakes
from farflung.job.schema import Job
from farflung.node.state.files.rests import Rest, contribute, digest_of
from farflung.node.state.sections.moments import STRETCH
from farflung.node.state.sections.residuals import EXACT, Residuals
from farflung.scheduler import Plan
from farflung.scheduler.workloads.round_copies import error_copies

HALF = Residuals(torch.bfloat16, 7)
SPARSE = "chunked_topk:k=512,bits=2,feedback=true"


def test_rounding_is_right_on_average():
    """Over the rounds the mean comes to the value, which is far from the nearest in bf16."""
    values, rounds = torch.tensor([1.0 + 2**-10, -3.0 - 2**-8, 1e-20, 0.3, 0.0]).repeat(40), 400
    kept = [HALF.kept(values, "w", 0, number).double() for number in range(rounds)]
    step = values.double().abs() * 2**-7
    assert all(bool(((one - values).abs() <= step).all()) for one in kept)
    error = (torch.stack(kept).mean(0) - values).abs()
    assert bool((error <= step * 4 / rounds**0.5).all())  # a step up or down has a deviation of at most half a step
    assert len({tuple(one.tolist()) for one in kept}) > 50


def test_bits_follow_from_seed_round_section_and_place_alone():
    values = torch.randn(2 * STRETCH + 100, generator=torch.Generator().manual_seed(1))
    whole = HALF.kept(values, "w", 0, 3)
    assert whole.dtype == torch.bfloat16
    for start, stop in ((0, 10), (STRETCH - 5, STRETCH + 5), (STRETCH, 2 * STRETCH + 100), (77, 78), (9, 9)):
        assert torch.equal(HALF.kept(values[start:stop], "w", start, 3), whole[start:stop].to(torch.bfloat16))
    others = HALF.kept(values, "w", 0, 4), HALF.kept(values, "v", 0, 3), replace(HALF, seed=8).kept(values, "w", 0, 3)
    assert not any(torch.equal(one, whole) for one in others)
    assert torch.equal(HALF.kept(whole.float(), "w", 0, 9), whole), "what is in bf16 stays"
    assert EXACT.kept(values, "w", 0, 3) is values
    with far_device():
        assert torch.equal(near(HALF.kept(far(values), "w", 0, 3)), whole)


def in_half(codec: str, weights: list[float]) -> Group:
    """A group whose members ask for every sum to be shown."""
    sections = [section_of(torch.randn(NUMEL, generator=torch.Generator().manual_seed(at))) for at in range(5)]
    for section in sections:
        section.residuals = HALF
    group = Group("publishers", codec, weights, sections=sections)
    for link in group.links.values():
        link.auditor._dice, link.auditor._share = lambda: 0.0, 1.0
    return group


@pytest.mark.parametrize(("codec", "members"), [("int4", 2), ("int8", 5)])
def test_server_errors_are_kept_in_half_of_the_bytes_and_audits_find_nothing(codec, members):
    """Of the first codec they are made from the messages, of the second when the sum is."""
    group, shown = in_half(codec, [1.0] * members), 0
    for number in range(3):
        for link in group.links.values():
            link.exchange.section.x.add_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(number)))
            link.begin()
        before = group.total()
        while group.mail:
            shown += group.mail[0][2].HasField("audit")
            group.deliver(0)
        for name in group.links:
            group.apply(name)
        torch.testing.assert_close(group.total(), before, rtol=0, atol=2e-3 if codec == "int8" else 0.01)
    assert shown and not group.warnings
    for link in group.links.values():
        assert {one.dtype for one in link.exchange.errors.values()} == {torch.bfloat16}
        assert torch.equal(link.exchange.section.g, group.links["a"].exchange.section.g)


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_a_round_leaves_is_kept_in_half_of_the_bytes(in_flight):
    """x - g of the round in flight is rounded too; what that takes off x joins the feedback."""
    exact, half = Group("publishers", SPARSE, [1.0, 2.0]), in_half(SPARSE, [1.0, 2.0])
    for number in range(4):
        for group in (exact, half):
            for link in group.links.values():
                chance = torch.Generator().manual_seed(number)
                link.begin()
                if in_flight:
                    link.exchange.x_moves()
                    size = 2 if group is half else 4
                    assert link.exchange.applier.nbytes == size * NUMEL
                link.exchange.section.x.add_(torch.randn(NUMEL, generator=chance) * 0.01)
            before = group.total()
            group.end_round()
            torch.testing.assert_close(group.total(), before, rtol=0, atol=3e-6 if group is exact else 0.02)
        for name, link in half.links.items() if not number else ():  # later another value may be the largest
            section, other = link.exchange.section, exact.links[name].exchange.section
            assert section.feedback.dtype == torch.bfloat16 and other.feedback.dtype == torch.float32
            assert float(section.feedback.float().sub(other.feedback).norm() / other.feedback.norm()) < 0.01
    first, second = (link.exchange.section.g for link in half.links.values())
    assert torch.equal(first, second)


def test_a_rest_brings_the_same_bits_back_in_either_form():
    group = in_half(SPARSE, [1.0, 2.0])
    for link in group.links.values():
        link.begin()
    group.end_round()
    section = next(iter(group.links.values())).exchange.section
    unsent = next(iter(group.links.values())).exchange.unsent_at("feedback.", slice(0, NUMEL))
    assert unsent.dtype == torch.float32
    tensors = {f"feedback.{name}": one for name, one in section.layout.views(section.feedback.float())}
    beside = {name: (digest_of(one), 1.0) for name, one in section.layout.views(section.g)}
    plan = Plan(pipelines=(("a",),), stages=((0, 1),), microbatches=(1,))
    for residuals in (EXACT, HALF):
        again = section_of(section.x)
        again.g.copy_(section.g)
        again.residuals = residuals
        state = SimpleNamespace(sections={"stage-0": again}, gradient=False, optimizer_steps=0)
        contribute(Rest(5, 1, 1.0, 1.0, tensors, beside, 0), state, plan, "a")
        assert again.feedback.dtype == residuals.dtype
        assert torch.equal(again.feedback.float(), section.feedback.float())


def test_weights_that_change_scale_it():
    section = section_of(torch.zeros(NUMEL))
    section.residuals = HALF
    with section.feeding(slice(0, NUMEL)) as fed:
        fed.fill_(3.0)
    section.weigh(0.25)
    section.weigh(0.5)
    assert section.feedback.dtype == torch.bfloat16 and bool((section.feedback == 1.5).all())


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ({"codec": "int8"}, ""),
        ({"mode": "delta", "codec": SPARSE}, ""),
        ({"codec": "none"}, "leaves nothing out"),
        ({"mode": "delta", "codec": "int4"}, ""),
        ({"mode": "delta", "codec": "int4", "pattern": "all_to_all"}, "stays in the weights"),
        ({"mode": "delta", "codec": "int8", "pattern": "gossip", "agreed": False}, "without agreed rounds"),
    ],
)
def test_it_is_refused_where_nothing_is_kept(updates, words):
    tables = {"run": {"steps": 1}, "model": {"layers": 1}, "data": {"text": ["none.txt"]}}
    job = Job.model_validate({**tables, "updates": {**updates, "residual": "bf16"}})
    said = [sentence for key, sentence in update_mistakes(job, None) if key == ("updates", "residual")]
    assert (len(said) == 1 and words in said[0]) if words else not said


def test_plans_count_it():
    def copies(codec, overlap=1, **updates):
        halves = {**updates, "residual": "bf16"}
        return tuple(error_copies(one, codec, "publishers", 4, overlap) for one in (updates, halves))

    assert copies("int8", mode="gradient") == (1.5, 0.75)
    assert copies("int4", mode="delta") == (0.25, 0.125)
    assert copies(SPARSE, 1, mode="delta") == (1.25, 0.625)
    assert copies(SPARSE, 2, mode="delta") == (2.25, 1.125)
