"""A node that goes gives its last contribution with the codec that its uplink has time for."""

from types import SimpleNamespace

import pytest
import torch

from farflung import compress
from farflung.job.data.sampling import Position
from farflung.node.device.limits import Wish
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.protocol.messages import Decide, Part, RoundPlan
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.training.modes.final_contribution import (
    last_codec,
    left_unsaid,
    say_all,
    say_no_more_than_usual,
)
from farflung.node.training.parting import LeaveWish, handed_over

NUMEL = 4096


def exchange(name, codec, pattern="publishers"):
    section = Section(Layout.of("stage-0", {"w": (NUMEL,)}), False, Kept(), torch.device("cpu"), True)
    section.x.copy_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(ord(name))))
    parts = (
        (Part(0, "a", 0, NUMEL, 0),)
        if pattern == "all_to_all"
        else (
            Part(0, "a", 0, NUMEL // 2, 0),
            Part(1, "b", NUMEL // 2, NUMEL, 0),
        )
    )
    return Exchange(section, RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), parts, pattern, False), name, codec, seed=7)


def training(one, durations=()):
    rounds = SimpleNamespace(plan=one.plan, me=one.plan.members[one.me], durations=list(durations))
    state = SimpleNamespace(sections={"stage-0": one.section})
    link = SimpleNamespace(exchange=one, rounds=rounds)
    return SimpleNamespace(gradient=False, links={"stage-0": link}, step=7, state=state)


@pytest.mark.parametrize(
    ("bits", "spec"), [(100, "none"), (20, "bf16"), (9, "int8"), (5, "int4"), (2.1, "topk:ratio=0.05")]
)
def test_what_fits(bits, spec):
    assert last_codec(bits) == spec
    values = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1))
    assert len(compress.make(spec).encode(values, seed=1, step=1, rank=0)) * 8 <= bits * values.numel()


def test_more_than_usual_where_there_is_time():
    one, other = (
        exchange("a", "cocktail:random=0.1,top=0.2,bits=4"),
        exchange("b", "cocktail:random=0.1,top=0.2,bits=4"),
    )
    for round in (1, 2):
        own = one.contributions(round)
        if round == 1:
            small = one.encoder.bits_sent()
            assert 0 < small < 2
            say_all(training(one), 1e6)
    assert str(one.encoder.last.spec) == "none" and one.encoder.bits_sent() > 32
    theirs = other.contributions(1)
    result, refused = other.decide(1, Decide(1, ((0, own[1]), (1, theirs[1]))))
    assert not refused and result.contributors == (0, 1), "whoever decides reads it as it comes"


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_less_than_usual_where_there_is_not(pattern):
    one = exchange("a", "none", pattern)
    one.contributions(1)
    sent = NUMEL if pattern == "all_to_all" else NUMEL // 2
    rate = sent * 8.5 / 15
    say_all(training(one), rate)
    assert str(one.encoder.last.spec) == "int8"
    say_all(training(one, [1.0] * 9), rate)
    assert str(one.encoder.last.spec).startswith("topk"), "no longer than a round takes: nobody waits"
    say_no_more_than_usual(training(one))
    assert one.encoder.last is None, "a node that stays after all goes on with the job's codec"


def test_nothing_changes_without_need_or_knowledge():
    one = exchange("a", "int8")
    one.contributions(1)
    for rate in (0.0, NUMEL / 2 * 9 / 15):
        say_all(training(one), rate)
        assert one.encoder.last is None
    gradient = training(one)
    gradient.gradient = True
    say_all(gradient, 1e9)
    assert one.encoder.last is None and left_unsaid(gradient, 5) == ""


def test_what_goes_with_it_is_said():
    one = exchange("a", "none")
    one.section.x.copy_(one.section.g)
    assert left_unsaid(training(one), 5) == ""
    one.section.x[0] += 3.0
    assert left_unsaid(training(one), 5) == "; 2 local steps and a rest of norm 3 go with it"


def test_what_an_explicit_error_feedback_holds_goes_with_a_node_too():
    one = exchange("a", "chunked_topk:k=128,bits=2,feedback=true")
    one.section.x.copy_(one.section.g)
    one.section.feedback = torch.full((NUMEL,), 0.5)
    assert "a rest of norm 32 go with it" in left_unsaid(training(one), 5)


@pytest.mark.parametrize(("reached", "done"), [(6, False), (7, True)])
def test_a_node_has_handed_over_when_a_round_of_the_view_it_is_in_has_taken_what_it_had(reached, done):
    mode = SimpleNamespace(reached=reached)  # which is the view's first step until a round is applied
    view = SimpleNamespace(step=8, last_step=20, position=Position(6))
    training = SimpleNamespace(view=view, mode=mode)
    leaving = LeaveWish(Wish("leaving"), 4)  # in the view before
    assert handed_over(training, leaving, leaving.began) is done
