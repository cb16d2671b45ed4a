"""Deadlines of rounds, who is waited for, and what is asked for and said again."""

import itertools

import pytest
import torch
from header_bodies import body_of
from round_group import Group

from farflung.node.rounds.protocol.machine import Rounds
from farflung.node.rounds.protocol.messages import Contribution, Decide, Part, RoundPlan
from farflung.proto import data_pb2


def test_the_deadline_follows_the_recent_rounds_and_gradient_mode_has_none():
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), (Part(0, "a", 0, 8),), "publishers")
    rounds = Rounds(plan, "a", 0, 5)
    assert rounds.deadline() is None
    rounds.durations = [1.0, 1.1, 0.9, 1.0, 1.0]
    assert rounds.deadline() == pytest.approx(1.75)
    own = {0: Contribution(b"x", (1,), 1)}
    assert rounds.begin(own, 0.0) == []
    assert rounds.tick(1.0) == []
    assert isinstance(rounds.tick(1.8)[0], Decide)
    patient = Rounds(RoundPlan(*plan.__dict__.values()).__class__(**{**plan.__dict__, "patient": True}), "a", 0, 5)
    patient.durations = [1.0] * 9
    assert patient.deadline() is None


def test_publishers_have_a_deadline_after_a_few_rounds():
    group = Group("publishers", "none", [1.0, 1.0, 1.0])
    for _ in range(6):
        for link in group.links.values():
            link.begin()
        group.now += 1.0
        group.end_round()
    assert all(link.rounds.deadline() == pytest.approx(1.75) for link in group.links.values())


def test_a_member_that_missed_two_rounds_is_waited_for_and_catches_up():
    group = Group("all_to_all", "none", [1.0, 1.0, 1.0])
    for link in group.links.values():
        link.rounds.durations = [1.0] * 5
    for _ in range(2):  # c does nothing: the others go on at the deadline
        for name in ("a", "b"):
            group.links[name].begin()
        for _ in range(2):
            for message in [m for m in group.mail if m[1] != "c"]:
                group.deliver(group.mail.index(message))
            group.now += 2.0
            for name in ("a", "b"):
                group.links[name].tick()
        while [m for m in group.mail if m[1] != "c"]:
            group.deliver(group.mail.index(next(m for m in group.mail if m[1] != "c")))
        for name in ("a", "b"):
            group.apply(name)
    for name in ("a", "b"):
        group.links[name].begin()
    group.now += 100.0
    for name in ("a", "b"):
        group.links[name].tick()
    assert not group.links["a"].complete  # one more round without c, and nobody could help it any more
    for number in range(1, 4):
        group.links["c"].begin()
        group.deliver_all()
        assert group.links["c"].complete, number
        group.apply("c")
    assert not group.warnings
    for name in ("a", "b"):
        group.apply(name)
    assert torch.equal(group.links["c"].exchange.section.g, group.links["a"].exchange.section.g)


@pytest.mark.parametrize("kind", ["CONTRIBUTION", "RESULT", "RESULT_HELD"])
@pytest.mark.parametrize(
    ("pattern", "codec"),
    [("publishers", "none"), ("all_to_all", "int8"), ("two_level", "none"), ("phases", "thc:bits=6")],
)
def test_whatever_is_lost_once_is_said_again(pattern, codec, kind):
    """Of every pair of members, the first message of that kind about each part."""
    group, lost = Group(pattern, codec, [1.0, 1.0, 1.0, 1.0]), set()
    for link in group.links.values():
        link.begin()
    for _ in range(20):
        while group.mail:
            sender, to, header, _ = group.mail[0]
            what = (sender, to, body_of(header).part)
            if header.kind == data_pb2.Kind.Value(kind) and what not in lost:
                lost.add(what)
                group.mail.pop(0)
            else:
                group.deliver(0)
        if all(link.complete for link in group.links.values()):
            break
        group.now += 60.0
        for link in group.links.values():
            link.tick()
    assert lost and all(link.complete for link in group.links.values()) and not group.warnings


def test_what_is_on_its_way_is_not_sent_twice():
    group = Group("publishers", "none", [1.0, 1.0, 1.0])
    for link in group.links.values():
        link.sending = lambda: True
        link.begin()
    group.mail.clear()
    for now in (6.0, 17.0):
        group.now = now
        for link in group.links.values():
            link.tick()
        while group.mail:
            assert group.mail[0][2].kind in (data_pb2.CONTRIBUTION_REQUEST, data_pb2.RESULT_REQUEST)
            group.deliver(0)


def test_nobody_asks_less_often_than_once_a_minute():
    plan = RoundPlan("stage-0", ("a", "b", "c"), (1.0,) * 3, (Part(0, "a", 0, 8),), "publishers", patient=True)
    rounds = Rounds(plan, "a", 0, 5)
    rounds.begin({0: Contribution(b"x", (1,), 1)}, 0.0)
    times = [now for now in range(1200) if rounds.tick(float(now))]
    assert times[:4] == [5, 10, 20, 40] and {b - a for a, b in itertools.pairwise(times[4:])} == {60}


def test_who_is_in_the_next_round_has_applied_this_one():
    """So the publisher needs no sign of it any more that its result is held."""
    group = Group("publishers", "none", [1.0, 1.0])
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, _ = group.mail[0]
        if (sender, to, header.kind) == ("b", "a", data_pb2.RESULT_HELD):
            group.mail.pop(0)
        else:
            group.deliver(0)
    assert group.links["b"].complete and not group.links["a"].complete
    group.apply("b")
    group.links["b"].begin()
    group.deliver_all()
    assert group.links["a"].complete


def test_missing_results_are_asked_of_one_member_and_less_and_less_often():
    plan = RoundPlan("stage-0", ("a", "b", "c"), (1.0,) * 3, (Part(0, "a", 0, 8),), "publishers")
    rounds = Rounds(plan, "b", 0, 5)
    rounds.begin({0: Contribution(b"x", (1,), 1)}, 0.0)
    asked = [(now, effect.to) for now in range(60) for effect in rounds.tick(float(now))]
    assert asked == [(5, "a"), (10, "c"), (20, "a"), (40, "c")]


def test_what_is_said_again_before_its_round_takes_one_place():
    group = Group("publishers", "none", [1.0] * 3)
    group.links["b"].begin()
    for index in [i for i, (_, to, _, _) in enumerate(group.mail) if to == "a"]:
        for _ in range(40):
            group.deliver(index, keep=True)
    assert not group.warnings and len(group.links["a"].rounds.early) == 1
