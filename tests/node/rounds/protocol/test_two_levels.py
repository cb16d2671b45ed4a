"""Rounds in two levels: the same sum as with publishers, and each byte crosses a border about once for each region."""

import pytest
import torch
from header_bodies import body_of
from round_group import NUMEL, Group
from windows import Windows, facts_of

from farflung.job.schema import Job, Updates
from farflung.node.state.sections.section import Layout
from farflung.node.state.stage_state import round_plan
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

NEAR, FAR = ("a", "b"), ("c", "d", "e")
STEPS = 8
WEIGHTS = [1.0, 0.5, 1.0, 0.25, 2.0]
BULK = (data_pb2.CONTRIBUTION, data_pb2.RESULT)


def crosses(sender, to):
    return (sender in NEAR) != (to in NEAR)


def play(group, names="abcde"):
    """One round of these members, everything delivered in order; the payload bytes that crossed the border."""
    crossed = 0
    for name in names:
        group.links[name].begin()
    while group.mail:
        sender, to, _, data = group.mail[0]
        crossed += len(data) * crosses(sender, to)
        group.deliver(0)
    return crossed


def test_bytes_cross_the_border_once_for_each_region_and_the_sum_is_that_of_publishers():
    flat, levels = (Group(pattern, "none", WEIGHTS) for pattern in ("publishers", "two_level"))
    many, few = play(flat), play(levels)
    for group in (flat, levels):
        for name in group.links:
            assert group.links[name].complete
            group.apply(name)
    g = [group.links["a"].exchange.section.g for group in (flat, levels)]
    torch.testing.assert_close(g[0], g[1], rtol=0, atol=2e-6)
    # Publishers: each of 5 parts to and from all members beyond its border. Two levels: a sum over it, a result back.
    dense = 4 * NUMEL
    assert many == pytest.approx(2 * dense * (2 / 5 * 3 + 3 / 5 * 2), rel=0.2)
    assert few == pytest.approx(2 * dense, rel=0.2)


@pytest.mark.parametrize("codec", ["none", "int4"])
@pytest.mark.parametrize("late", ["e", "c"])
def test_who_is_late_is_left_out_and_a_late_taker_with_its_whole_region(codec, late):
    """``c`` and ``d`` add up what their region sends for the parts of ``a`` and ``b``; ``e`` adds up nothing."""
    group = Group("two_level", codec, WEIGHTS)
    plan = group.links["a"].rounds.plan
    parts = [part for part in plan.parts if part.publisher in NEAR]
    assert [part.taker(4) for part in parts] == ["c", "d"]
    for link in group.links.values():  # one round of this kind alone
        object.__setattr__(link.rounds.plan, "parts", tuple(parts))
    play(group)
    for name in group.links:
        group.apply(name)
    before, kept = (
        group.total(),
        {n: {part: error.clone() for part, error in link.exchange.errors.items()} for n, link in group.links.items()},
    )
    for link in group.links.values():
        link.rounds.durations = [3.0] * 5
        link.rounds.gathered = [1.0] * 5  # a region's sum is to be there before its publisher's deadline
    others = [name for name in group.links if name != late]
    play(group, others)
    start = group.now
    for group.now in (start + 2.0, start + 6.0):
        for name in others:
            group.links[name].tick()
        group.deliver_all()
    play(group, [late])
    for name in group.links:
        assert group.links[name].complete
        counted = {result.part: result.contributors for result in group.links[name].rounds.open.results.values()}
        # Behind a late taker nobody of its region counts in its part; in the part of another taker only it is missing.
        assert counted == {0: (0, 1) if late == "c" else (0, 1, 2, 3), 1: (0, 1, 3, 4) if late == "c" else (0, 1, 2, 3)}
        group.apply(name)
    if late == "c":
        assert kept["c"].keys() == group.links["c"].exchange.errors.keys()
        for part, error in kept["c"].items():
            torch.testing.assert_close(group.links["c"].exchange.errors[part], error, rtol=0, atol=1e-6)
    sections = [link.exchange.section for link in group.links.values()]
    assert all(torch.equal(sections[0].g, other.g) for other in sections)
    torch.testing.assert_close(group.total(), before, rtol=0, atol=3e-6)
    assert group.links["a"].rounds.misses["e"] == (late == "e" or 1) and not group.warnings
    play(group)
    for name in group.links:
        group.apply(name)
    assert set(group.links["a"].rounds.misses.values()) == {0}
    torch.testing.assert_close(group.total(), before, rtol=0, atol=5e-6)


def test_a_sum_over_members_of_another_region_is_refused():
    group = Group("two_level", "none", WEIGHTS)
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, _ = group.mail[0]
        if header.kind == data_pb2.RESULT and body_of(header).part == 0 and (sender, to) == ("c", "a"):
            body_of(header).contributors[0] = 1
        group.deliver(0)
    assert [why for node, why in group.warnings if node == "c"] == [
        "a sum of part 0 over members of other regions than that of c"
    ]
    assert not group.links["a"].complete


def test_a_sum_that_makes_no_sense_leaves_its_region_out_and_its_taker_is_named():
    group = Group("two_level", "int4", WEIGHTS)
    before = group.total()
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, data = group.mail[0]
        if header.kind == data_pb2.RESULT and body_of(header).part == 0 and (sender, to) == ("c", "a"):
            group.mail[0] = (sender, to, header, bytes(len(data)))
        group.deliver(0)
    [(node, why)] = group.warnings
    assert node == "c" and "bytes that do not decode" in why
    for name in group.links:
        assert group.links[name].rounds.open.results[0].contributors == (0, 1)
        group.apply(name)
    torch.testing.assert_close(group.total(), before, rtol=0, atol=3e-6)


@pytest.mark.parametrize("codec", ["dynamiq:bits=8", "rotq:bits=6", "docofl:bits=6"])
def test_codecs_of_several_hops_add_up_over_regions(codec):
    """Encoded by a member, by its region and by the publisher: near the exact sum, and nothing of it is lost."""
    exact, coded = (Group("two_level", one, WEIGHTS) for one in ("none", codec))
    start, before = coded.links["a"].exchange.section.g.clone(), coded.total()
    for group in (exact, coded):
        play(group)
        for name in group.links:
            group.apply(name)
    moved = exact.links["a"].exchange.section.g - start
    off = coded.links["a"].exchange.section.g - exact.links["a"].exchange.section.g
    assert 0 < float(off.norm()) < 0.2 * float(moved.norm())
    assert len({link.exchange.section.chain for link in coded.links.values()}) == 1
    torch.testing.assert_close(coded.total(), before, rtol=0, atol=5e-6)


def test_a_plan_says_who_takes_what():
    plan = Plan(
        pipelines=(("a",), ("b",), ("c",), ("d",), ("z",)),
        stages=((0, 3),),
        microbatches=(1,) * 5,
        regions=(("a", "b"), ("c", "d"), ("z",)),
    )
    layout = Layout.of("stage-0", {"w": (5 * 256,)})
    made = round_plan(plan, layout, Updates(block=256))
    assert made.pattern == "two_level"
    takers = {part.publisher: part.takers for part in made.parts}
    assert takers["a"] == ("a", "a", "c", "c", "a") and takers["b"] == ("b", "b", "d", "d", "b")
    assert takers["z"] == ("a", "a", "c", "c", "z")
    assert round_plan(plan, layout, Updates(block=256, pattern="publishers")).parts[0].takers == ()
    flat = Plan(plan.pipelines, plan.stages, plan.microbatches)
    assert round_plan(flat, layout, Updates(block=256, pattern="two_level")).parts[0].takers == ()
    assert round_plan(plan, layout, Updates(block=256), phases=2).parts[0].takers == ()


def train(mode, **updates):
    """Losses by step, the bytes of rounds that crossed the border, and the outcome."""
    job = Job.model_validate(
        {
            "run": {"name": "levels", "seed": 5, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": False},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 10, "microbatch": 2, "learning_rate": 1e-2, "eval_every": 0},
            "updates": {"mode": mode, "block": 256, **updates},
            "checkpoint": {"every": 0},
        }
    )
    plan = Plan(tuple((name,) for name in "abcde"), ((0, 3),), (1,) * 5, regions=(NEAR, FAR))
    facts = facts_of(samples=60, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub, crossed = Hub(job, facts), [0]

    def count(sender, to, header, data):
        crossed[0] += data.nbytes * (crosses(sender, to) and header.kind in BULK)
        return data

    hub.tamper = count
    data = Windows(facts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    outcome = hub.finish(plan.nodes)
    assert not hub.errors and not outcome.warnings
    assert all(len(contents) == 1 for contents in outcome.fingerprints.values())
    return outcome, crossed[0]


@pytest.mark.usefixtures("nobody_late")
def test_training_in_two_levels_is_training_with_publishers():
    (flat, many), (levels, few) = (train("gradient", pattern=pattern) for pattern in ("publishers", "auto"))
    assert list(levels.losses.values()) == pytest.approx(list(flat.losses.values()), abs=1e-4)
    assert levels.losses[STEPS] < levels.losses[1] - 0.05
    assert few < 0.5 * many


@pytest.mark.usefixtures("nobody_late")
def test_training_in_two_levels_with_a_codec_learns_the_same():
    (exact, many), (lossy, few) = (train("delta", codec=codec, pattern="two_level") for codec in ("none", "int8"))
    assert lossy.losses[STEPS] == pytest.approx(exact.losses[STEPS], abs=0.02)
    assert few < 0.4 * many
