"""Who drops the group's steps by gradients that are not finite, step after step, is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.job.schema import Train
from farflung.node.rounds.checking.spoilers import PATIENCE, RELIEF, Spoilers, spoilers_of
from farflung.node.rounds.protocol.messages import Contribution, RoundPlan
from farflung.node.state.loss_scale import FIRST, LossScale
from farflung.scheduler import Plan

FINITE, EMPTY = Contribution((b"x",), (1,), 1), Contribution((), (), 0)


def offered(*empty, members=3):
    return [(index, EMPTY if index in empty else FINITE) for index in range(members)]


def members(found):
    return [one.member for one in found]


def test_after_so_many_in_a_row():
    spoilers = Spoilers(0, range(3))
    found = [members(spoilers.found(round, offered(2))) for round in range(1, PATIENCE + 3)]
    assert found == [[]] * PATIENCE + [[2]] * 2


def test_a_round_counts_once_whatever_the_parts():
    spoilers = Spoilers(0, range(3))
    for round in range(1, PATIENCE + 1):
        assert [spoilers.found(round, offered(2)) for _ in range(3)] == [[]] * 3
    assert [members(spoilers.found(PATIENCE + 1, offered(2))) for _ in range(3)] == [[2], [], []]


@pytest.mark.parametrize("empty", [(0, 1, 2), (0,)], ids=["everybody's", "its own"])
def test_what_is_nobodys_fault(empty):
    """A loss scale that is too large for all; and nobody accuses itself."""
    spoilers = Spoilers(0, range(3))
    assert not any(spoilers.found(round, offered(*empty)) for round in range(1, 100))


@given(every=st.integers(1, 60))
def test_who_spoils_now_and_then_is_named_if_it_is_often(every):
    """The n-th time that one spoils a round, with ``every`` - 1 sound ones between: named when it counts too much."""
    spoilers, grows = Spoilers(0, range(3)), 1 - RELIEF * (every - 1)  # what a cycle adds
    times = 1 + int((PATIENCE - 1) / grows) + 1 if grows > 0 else 1000 // every
    named = [
        round
        for round in range(1, times * every + 1)
        if spoilers.found(round, offered(*([1] if round % every == 0 else [])))
    ]
    assert named == ([times * every] if every < 1 / RELIEF + 1 else [])


@given(spoilt=st.lists(st.sets(st.integers(0, 3)), max_size=200))
def test_only_who_spoils_a_round_now_and_too_many_before_is_named(spoilt):
    spoilers = Spoilers(0, range(4))
    for round, empty in enumerate(spoilt, 1):
        named = members(spoilers.found(round, offered(*empty, members=4)))
        before = [one for one in spoilt[:round] if len(one) < 4]
        assert set(named) <= empty - {0}
        assert all(sum(index in one for one in before) > PATIENCE for index in named)
        assert not named or len(empty) < 4


def of(train, *pipelines):
    members = sorted({pipeline[0] for pipeline in pipelines})
    plan = Plan(pipelines=pipelines, stages=((0, 1), (2, 2))[: len(pipelines[0])], microbatches=(1,) * len(pipelines))
    return spoilers_of(train, plan, RoundPlan("s", tuple(members), (1.0,) * len(members), (), "publishers"), 0)


@pytest.mark.parametrize("steps", [1, 2, 7, 31, 64, 100, 2000])
@pytest.mark.parametrize("fits", [-14, -3, 0, 9])
def test_an_honest_member_whose_loss_scale_must_be_smaller_than_others_is_never_named(steps, fits):
    """From the first scale down to one that fits it, and each time the scale has doubled again."""
    train = Train(precision="fp16", loss_scale_steps=steps)
    spoilers, scale = of(train, ("a",), ("b",), ("c",)), LossScale(FIRST)
    for round in range(1, 3000):
        overflows = scale.scale > 2.0**fits
        assert not spoilers.found(round, offered(*([2] if overflows else [])))
        scale = scale.after(not overflows, steps)


def test_a_pipeline_whose_gradient_came_through_several_nodes_is_named_once_and_none_of_them_alone():
    """The node of the stage after it may send it gradients that are not finite."""
    spoilers = of(Train(), ("a", "x"), ("b", "y"), ("c", "c"))
    found = [one for round in range(1, 100) for one in spoilers.found(round, offered(1))]
    assert [one.among for one in found] == [("b", "y")]
    assert "the pipeline b > y spoils steps (one of b and y," in found[0].why
    alone = [one for round in range(100, 200) for one in spoilers.found(round, offered(2))]
    assert len(alone) > 1 and not any(one.among for one in alone)


def test_the_publishers_own_pipeline_is_named_by_others():
    spoilers = of(Train(), ("a", "x"), ("b", "y"))
    assert not any(spoilers.found(round, offered(0, members=2)) for round in range(1, 100))


def test_who_spoils_every_step_takes_nobodys_relief():
    spoilers = Spoilers(0, range(3))
    for round in range(1, 40 * PATIENCE):
        assert 2 not in members(spoilers.found(round, offered(*([1, 2] if round % 40 == 0 else [1]))))
