"""A layer goes to another node, and what its node had learnt of it and not sent goes along: S stays."""

import hypothesis
import pytest
import torch
from header_bodies import body_of
from hypothesis import strategies as st
from round_group import NUMEL, Group
from windows import Windows, facts_of, wait_until

from farflung.coordinator.membership import signals
from farflung.coordinator.membership.resuming.handovers import Residuals, handovers, lost, residuals_of
from farflung.job.schema import Job
from farflung.node.state.stage_state import section_parameters
from farflung.node.training.changes import view_change as module
from farflung.node.training.changes.view_change import ViewChange
from farflung.proto import control_pb2, data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 24
GRADIENT = {"mode": "gradient", "codec": "topk:ratio=0.05,feedback=true"}
BEFORE = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 4)), microbatches=(3, 3))
AFTER = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 2), (3, 4)), microbatches=(3, 3))
TURNED = Plan(pipelines=(("b", "a"), ("c", "d")), stages=((0, 1), (2, 4)), microbatches=(3, 3))
SPARED = Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 4)), microbatches=(6,), spares={"c": "", "d": ""})
UNEVEN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 4)), microbatches=(5, 1))
RECUT_UNEVEN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 2), (3, 4)), microbatches=(2, 4))
ONE = Plan(pipelines=(("a",), ("c",)), stages=((0, 4),), microbatches=(3, 3), spares={"b": "", "d": ""})
LOSSY = [
    {"codec": "topk:ratio=0.05", "overlap": 1},
    {"codec": "int4", "pattern": "publishers", "overlap": 1},
    {"codec": "chunked_topk:k=64,bits=2,feedback=true"},
    {"codec": "topk:ratio=0.05", "every": 5, "outer": "nesterov:lr=0.7,momentum=0.9"},
]


def start(updates):
    job = Job.model_validate(
        {
            "run": {"name": "handover", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 3, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": "delta", "block": 256, **updates},
            "checkpoint": {"every": 0},
        }
    )
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub = Hub(job, facts)
    residuals = residuals_of(job)
    hub.hands_over = lambda before, plan, holders, answers: [
        control_pb2.Handover(giver=one.giver, taker=one.taker, layers=one.layers, ends=one.ends)
        for one in handovers(before, plan, holders, (), residuals, unsent_of(answers))
    ]
    for name in BEFORE.nodes:
        hub.start(name, Windows(facts))
    hub.begin(BEFORE, BEFORE.nodes, checkpoint=0)
    return hub


def unsent_of(answers):
    return {name: dict(zip(answer.layers, answer.unsent, strict=False)) for name, answer in answers.items()}


def local(training):
    """parameter -> p (x - g + e), float64; in gradient mode e."""
    found = {}
    for name, section in training.state.sections.items():
        rest = section.x.double() - section.g.double()
        if section.feedback is not None:
            rest += section.feedback.double()
        assert not training.exchanges[name].errors
        share = 1.0 if training.gradient else training.exchanges[name].share
        found |= {one: values * share for one, values in section.layout.views(rest)}
    return found


def whole(of):
    """What the group has beside the reference: S - g, by parameter."""
    found = {}
    for one in of:
        for name, values in one.items():
            found[name] = found.get(name, 0.0) + values
    return found


@pytest.fixture
def before(monkeypatch):
    """What each node has of S when the old view is done with."""
    found = {}
    catch_up = ViewChange._catch_up

    def spy(change, view):
        catch_up(change, view)
        if change._holdings.previous is not None:
            found[change._holdings.context.name] = local(change._holdings.previous.view)

    monkeypatch.setattr(ViewChange, "_catch_up", spy)
    return found


@pytest.fixture
def after(monkeypatch):
    """What each node has as it begins to train."""
    found = {}
    take_over = ViewChange._take_over

    def spy(change):
        take_over(change)
        holdings = change._holdings
        if holdings.training is not None:
            found[holdings.context.name, holdings.view] = local(holdings.training.view)

    monkeypatch.setattr(ViewChange, "_take_over", spy)
    return found


def at(after, view):
    return whole(own for (_, number), own in after.items() if number == view)


def same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert torch.allclose(values, other[name], atol=1e-6), name


def under_way(hub, plan, step=7):
    wait_until(lambda: min(hub.trainers[name].step for name in plan.nodes) >= step)


@pytest.mark.parametrize(
    ("plan", "updates"),
    [
        (AFTER, LOSSY[0]),
        (AFTER, LOSSY[1]),
        (AFTER, GRADIENT),
        (TURNED, LOSSY[2]),
        (ONE, LOSSY[0]),
        (ONE, GRADIENT),
        (UNEVEN, LOSSY[2]),
        (UNEVEN, LOSSY[3]),
        (RECUT_UNEVEN, LOSSY[0]),
        (RECUT_UNEVEN, LOSSY[2]),
    ],
)
def test_s_stays_where_layers_move(before, after, plan, updates):
    hub = start(updates)
    under_way(hub, BEFORE)
    hub.change(plan, BEFORE.nodes)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors and not outcome.warnings
    same(at(after, 2), whole(before.values()))
    moved = [own for name, own in before.items() if name not in plan.nodes or plan.stages != BEFORE.stages]
    assert plan in (TURNED, UNEVEN) or any(bool(values.any()) for own in moved for values in own.values())
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())


def test_what_spares_had_learnt_goes_to_those_who_train_on(before, after):
    hub = start(LOSSY[0])
    under_way(hub, BEFORE)
    hub.change(SPARED, BEFORE.nodes)
    hub.finish(SPARED.nodes)
    given = whole(before[name] for name in "cd")
    assert any(bool(values.any()) for values in given.values())
    found = at(after, 2)
    for name, values in whole(before[name] for name in "ab").items():
        assert torch.allclose(found[name], values + given[name], atol=1e-6)


def test_a_node_that_comes_and_goes_leaves_what_the_others_had_learnt(before, after):
    """A pipeline dies: its own part of S goes with it and nothing else, though the others' shares are larger now."""
    hub = start(LOSSY[0])
    under_way(hub, BEFORE)
    for name in "cd":
        hub.kill(name)
    hub.change(Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 4)), microbatches=(6,)), "ab")
    hub.finish("ab")
    same(at(after, 2), whole(before[name] for name in "ab"))


def test_views_that_never_start_change_no_shares(before, after):
    hub = start(LOSSY[0])
    under_way(hub, BEFORE)
    hub.change(UNEVEN, BEFORE.nodes, start=False)
    wanted = whole(before.values())
    hub.plan = BEFORE
    hub.change(RECUT_UNEVEN, BEFORE.nodes, start=False)
    hub.plan = BEFORE
    hub.change(RECUT_UNEVEN, BEFORE.nodes)
    hub.finish(BEFORE.nodes)
    same(at(after, 4), wanted)


def test_a_view_that_never_starts_hands_nothing_over_twice(before, after):
    hub = start(LOSSY[0])
    under_way(hub, BEFORE)
    hub.change(AFTER, BEFORE.nodes, start=False)
    wanted = whole(before.values())
    hub.plan, unstarted = BEFORE, hub.view
    hub.change(TURNED, BEFORE.nodes, start=False)
    hub.plan = BEFORE
    hub.change(AFTER, BEFORE.nodes)
    hub.finish(AFTER.nodes)
    assert not at(after, unstarted) and hub.view == unstarted + 2
    same(at(after, hub.view), wanted)


def test_who_does_not_answer_loses_its_own_alone(before, after, monkeypatch):
    hub = start(LOSSY[0])
    under_way(hub, BEFORE)

    def none(sender, to, header, data):
        asked = header.kind == data_pb2.STATE and body_of(header).name.startswith("local:")
        return data[:0] if asked and sender == "b" else data

    hub.tamper = none
    hub.change(AFTER, BEFORE.nodes)
    outcome = hub.finish(AFTER.nodes)
    (said,) = outcome.warnings
    assert said.startswith("b: what it had learnt of") and "lost" in said
    names_of = section_parameters(hub.trainers["b"].context.definition, AFTER, (1,))
    kept = {name for names in names_of.values() for name in names}
    rest = dict(before, b={name: values * (name in kept) for name, values in before["b"].items()})
    same(at(after, 2), whole(rest.values()))


def test_lies_are_refused(monkeypatch):
    hub = start(LOSSY[0])
    under_way(hub, BEFORE)
    given = module.given

    def huge(job, before, order):
        found = given(job, before, order)
        for vectors in found.values() if before.context.name == "b" else ():
            vectors[""].fill_(1e6)
        return found

    monkeypatch.setattr(module, "given", huge)
    hub.change(AFTER, BEFORE.nodes)
    outcome = hub.finish(AFTER.nodes)
    assert len(outcome.warnings) == 1 and "it has norm" in outcome.warnings[0]


def test_what_nobody_may_see_stays_and_its_norm_is_told():
    hub = start({"codec": "topk:ratio=0.05", "pattern": "publishers", "robust": "clip"})
    under_way(hub, BEFORE)
    answers = hub.flush(BEFORE.nodes)
    for answer in answers.values():
        assert len(answer.unsent) == len(answer.layers) > 0
        assert all(norm > 0 for norm in answer.unsent) and answer.moved > 0
    assert not start(LOSSY[0]).flush(BEFORE.nodes)["a"].unsent


def test_a_leaver_in_gradient_mode_says_what_goes_with_it():
    hub = start(GRADIENT)
    under_way(hub, BEFORE)
    hub.order("a", leave=control_pb2.Leave(why="asked to"))
    said, done = "", set()
    while not said:
        name, report = hub.reports.get(timeout=60)
        said = report.leaving.why if report.WhichOneof("kind") == "leaving" else ""
        done |= {name} if report.WhichOneof("kind") == "finished" else set()
    assert name == "a" and "an error feedback of" in said and "gradients goes with it" in said
    hub.finish([one for one in BEFORE.nodes if one not in done])
    for one in done:
        hub.order(one, stop=control_pb2.Stop(why="done"))
        hub.threads[one].join(10)


# ---- the shares of the batch ----------------------------------------------------------------------


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    codec=st.sampled_from(["int4", "topk:ratio=0.1", "chunked_topk:k=16,bits=2,feedback=true", "none"]),
    pattern=st.sampled_from(["publishers", "all_to_all"]),
    views=st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
)
def test_s_stays_whatever_the_shares_become(codec, pattern, views, seed):
    """Rounds, a view's end, other shares, rounds again, ...: S changes by what is learnt and by nothing else."""
    generator = torch.Generator().manual_seed(seed)
    sections, shares = None, []
    for weights in views:
        before = None if sections is None else total(sections, shares)
        group = Group(pattern, codec, [float(one) for one in weights], sections=sections)
        shares = [one / sum(weights) for one in weights]
        sections = [link.exchange.section for link in group.links.values()]
        for section, share in zip(sections, shares, strict=True):
            section.weigh(share)
        if before is not None:
            torch.testing.assert_close(total(sections, shares), before, rtol=1e-4, atol=1e-4)
        for section in sections:
            section.x.add_(torch.randn(NUMEL, generator=generator))
        learnt = total(sections, shares)
        for link in group.links.values():
            link.begin()
        group.deliver_all()
        for name, link in group.links.items():
            assert link.complete
            group.apply(name)
        for link in group.links.values():
            link.exchange.fold_errors()
        torch.testing.assert_close(total(sections, shares), learnt, rtol=1e-4, atol=1e-4)


def total(sections, shares):
    """S, float64 [NUMEL]."""
    own = [one.x.double() + (0.0 if one.feedback is None else one.feedback.double()) for one in sections]
    return sum(values * share for values, share in zip(own, shares, strict=True))


# ---- who gives to whom ----------------------------------------------------------------------------

ALL = [["a", "b", "c", "d"]] * 5


def test_a_layer_goes_to_the_givers_pipeline_else_to_the_largest():
    found = handovers(BEFORE, AFTER, ALL, (), Residuals())
    assert [(one.giver, one.taker, one.layers, one.ends) for one in found] == [
        ("b", "a", (2,), False),
        ("d", "c", (2,), False),
    ]
    found = handovers(BEFORE, SPARED, ALL, (), Residuals())
    assert [(one.giver, one.taker, one.layers, one.ends) for one in found] == [
        ("c", "a", (0, 1), True),
        ("d", "b", (2, 3, 4), False),
        ("d", "a", (), True),
    ]


def test_who_lacks_the_reference_or_has_said_its_last_hands_nothing_over():
    assert handovers(BEFORE, AFTER, [["a", "c", "d"]] * 5, "d", Residuals()) == ()
    assert handovers(BEFORE, BEFORE, ALL, (), Residuals()) == ()
    assert handovers(BEFORE, AFTER, ALL, (), None) == ()
    alone = Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 4)), microbatches=(6,))
    moved = Plan(pipelines=(("a", "b"),), stages=((0, 2), (3, 4)), microbatches=(6,))
    assert handovers(alone, moved, ALL, (), Residuals()) == (), "g := x costs nothing"
    assert len(handovers(alone, moved, ALL, (), Residuals(alone=True))) == 1
    said = {"b": {2: 0.5, 3: 0.5}}  # its rounds are those of the tied embedding
    assert [one.layers for one in handovers(alone, moved, ALL, (), Residuals(), said)] == [(2,)]


def test_in_gradient_mode_only_what_is_something_goes():
    residuals = Residuals(gradient=True)
    assert handovers(BEFORE, AFTER, ALL, (), residuals) == ()
    found = handovers(BEFORE, AFTER, ALL, (), residuals, {"b": {2: 0.5, 3: 0.1}, "d": {2: 0.0, 3: 0.1}})
    assert [(one.giver, one.taker, one.layers) for one in found] == [("b", "a", (2,))]


def test_what_is_lost_where_nobody_may_see_it_is_said_as_a_share_of_the_movement():
    found = handovers(BEFORE, AFTER, ALL, (), Residuals())
    flushed = {
        name: signals.Flushed(name, name, 2, unsent={2: 0.3, 3: 9.0} if name == "b" else {2: 0.4}, moved=10.0)
        for name in "bd"
    }
    said = lost(found, flushed, "updates.secure")
    assert "layer 2 " in said and "(5.0% of what the weights have moved) is lost: updates.secure" in said
    assert not lost(found, {name: signals.Flushed(name, name, 2) for name in "bd"}, "updates.secure")
