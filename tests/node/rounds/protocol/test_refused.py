"""Messages of rounds that make no sense: who is put out, and what stays."""

import math

import pytest
import torch
from header_bodies import body_of
from round_group import Group

from farflung.coordinator.membership.faults.refusals import Circle, Refusals
from farflung.node.rounds.arithmetic.ways import programs
from farflung.node.rounds.protocol.machine import Rounds
from farflung.node.rounds.protocol.messages import Contribution, Part, Refuse, Result, RoundPlan
from farflung.proto import data_pb2


def test_another_history_is_refused_with_both_sides_named():
    group = Group("publishers", "none", [1.0, 1.0])
    section = group.links["b"].exchange.section
    section.g[3] = 1.0
    section.restart_chain(1, 0)
    group.links["b"].rounds.chain = section.chain
    for link in group.links.values():
        link.begin()
    group.deliver_all()
    assert any("b holds another history of stage-0 than a" in why for _, why in group.warnings)


def test_what_is_not_finite_is_refused_and_its_sender_named():
    group = Group("publishers", "none", [1.0, 1.0, 1.0])
    for name, link in group.links.items():
        link.begin()
        if name == "b":
            from farflung import compress

            evil = torch.full((32,), 1.0)
            blob = bytearray(compress.make("none").encode(evil))
            blob[-128:] = torch.full((32,), math.nan).numpy().tobytes()
            for index, (sender, to, header, data) in enumerate(group.mail):
                if sender == "b" and to == "a":
                    del body_of(header).sizes[:]
                    body_of(header).sizes.append(len(blob))
                    group.mail[index] = (sender, to, header, bytes(blob))
                    assert len(data) == len(blob)
    group.deliver_all()
    assert any(node == "b" and "refused" in why for node, why in group.warnings)
    assert all(link.complete for link in group.links.values())
    group.apply("a")
    assert bool(torch.isfinite(group.links["a"].exchange.section.g).all())


@pytest.mark.parametrize(("tamper", "why"), [(-1.0, "no members' numbers have"), (math.nan, "not finite")])
def test_an_answer_of_a_phase_that_makes_no_sense_puts_its_publisher_out_and_ends_nobody(tamper, why):
    group = Group("phases", "intsgd:rule=max", [1.0, 1.0, 1.0])
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, _ = group.mail[0]
        if header.kind == data_pb2.RESULT and sender == "a" and body_of(header).part == 0:
            group.mail[0] = (sender, to, header, torch.full((1,), tamper).numpy().tobytes())
        group.deliver(0)
    assert not any(link.complete for name, link in group.links.items() if name != "a")
    assert sum(node == "a" and why in said for node, said in group.warnings) == 2  # b and c say so


@pytest.mark.parametrize(
    ("codec", "phase", "evil", "why"),
    [
        ("powersgd:rank=2", 0, torch.full((16,), 1e30).numpy().tobytes(), "an absurd norm"),
        ("intsgd:rule=max", 1, programs.to_bytes(torch.full((48,), 60000, dtype=torch.int32)), "a level of 60000"),
    ],
    ids=["values", "levels"],
)
def test_a_member_of_a_summed_codec_that_is_far_too_large_is_refused_by_name(codec, phase, evil, why):
    group = Group("phases", codec, [1.0, 1.0, 1.0])
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, data = group.mail[0]
        if header.kind == data_pb2.CONTRIBUTION and (sender, to) == ("b", "a") and body_of(header).part == phase:
            assert body_of(header).sizes[0] == len(data)
            body_of(header).sizes[0] = len(evil)
            group.mail[0] = (sender, to, header, evil)
        group.deliver(0)
    assert [node for node, said in group.warnings if why in said] == ["b"]
    changed_on_the_way = "a counted another contribution of b"
    assert all(why in said or said == changed_on_the_way for _, said in group.warnings)
    for name in group.links:
        group.apply(name)
    sections = [link.exchange.section for link in group.links.values()]
    assert all(torch.equal(sections[0].g, other.g) for other in sections)
    assert float(sections[0].g.abs().max()) < 10


def test_a_message_of_another_fragment_is_refused():
    parts = (Part(0, "a", 0, 8, 0), Part(1, "a", 8, 16, 1))
    rounds = Rounds(RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), parts, "publishers", False, 2), "a", 0, 5)
    effects = rounds.contribution("b", "b", 1, 1, 5, Contribution(b"", (0,), 1), now=0.0)
    assert isinstance(effects[0], Refuse) and "round 1 of stage-0 has no part 1" in effects[0].why
    assert rounds.contribution("b", "b", 2, 1, 5, Contribution(b"", (0,), 1), now=0.0) == []


@pytest.mark.parametrize(
    ("sender", "number", "part", "wrong"),
    [("z", 1, 0, "not a member"), ("b", 9, 0, "while round 0 is the last"), ("b", 1, 7, "no part 7")],
)
def test_messages_that_cannot_be_are_refused(sender, number, part, wrong):
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), (Part(0, "a", 0, 8),), "publishers")
    rounds = Rounds(plan, "a", 0, 5)
    effects = rounds.contribution(sender, sender, number, part, 5, Contribution(b"", (0,), 1), now=0.0)
    assert isinstance(effects[0], Refuse)
    assert wrong in effects[0].why


def test_a_result_that_names_nobody_is_refused():
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), (Part(0, "a", 0, 8),), "publishers")
    rounds = Rounds(plan, "b", 0, 5)
    for contributors, digests in [((), ()), ((0, 5), (1, 2)), ((1, 0), (1, 2)), ((0,), ())]:
        effects = rounds.result("a", 1, 5, Result(0, contributors, digests), 0.0)
        assert isinstance(effects[0], Refuse)


@pytest.mark.parametrize("members", [2, 3, 4, 7])
@pytest.mark.parametrize("liar", ["a", "b"], ids=["the publisher", "a member"])
def test_without_signatures_who_sends_nothing_and_counts_something_is_named_within_three_requests(members, liar):
    """In gradient mode nothing says that the gradient is not finite: the others then have one sum and the liar another,
    or they have none at all. Somebody is out or planned apart, and whoever passes on what another said is not named."""
    group = Group("all_to_all", "none", [1.0] * members, gradient=True)

    def empty(sender, header):
        if sender == liar and header.kind == data_pb2.CONTRIBUTION:
            del body_of(header).sizes[:]
            return b""
        return None

    stands(group, empty)
    assert {of for _, of in group.given} == {"a"}, "who passes the publisher's word on is not at fault"
    assert liar in concerned(group), group.given


def stands(group, tamper):
    """Three requests of everybody; ``tamper(sender, header)`` returns other bytes of a message, or None. The round is
    not complete for all."""
    for link in group.links.values():
        link.begin()
    for _ in range(4):
        while group.mail:
            sender, to, header, _ = group.mail[0]
            other = tamper(sender, header)
            if other is not None:
                group.mail[0] = (sender, to, header, other)
            group.deliver(0)
        group.now += 60.0
        for link in group.links.values():
            link.tick()
    assert not all(link.complete for link in group.links.values())


def concerned(group):
    """Whom a coordinator puts out or plans apart for the points that were given."""
    refusals, names = Refusals(), list(group.links)
    circles = {name: Circle(len(names) - 1, {n: n for n in names if n != name}) for name in names}
    found = set()
    for (by, of), points in group.given.items():
        verdict = refusals.count((by, "1"), (of, "1"), points, circles[of], circles[by])
        if verdict is not None:
            found |= {verdict.out, *(verdict.apart or ())}
    return found


MALFORMED = {
    "contributors": lambda body: body.contributors.__setitem__(0, 9),
    "digests": lambda body: body.digests.pop(),
    "factors": lambda body: body.factors.append(2.0),
}


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("how", MALFORMED)
@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_a_publisher_whose_results_are_none_is_named_within_three_requests(pattern, how, members):
    group = Group(pattern, "none", [1.0] * members, gradient=True)

    def break_it(sender, header):
        if sender == "a" and header.kind == data_pb2.RESULT:
            MALFORMED[how](body_of(header))

    stands(group, break_it)
    assert "a" in concerned(group), group.given


def test_a_region_whose_sum_is_none_is_named_within_three_requests():
    """The taker d says that its sum is of a member of another region."""
    group = Group("two_level", "none", [1.0] * 4, gradient=True)

    def break_it(sender, header):
        if header.kind == data_pb2.RESULT and sender == "d" and list(body_of(header).contributors) == [2, 3]:
            body_of(header).contributors[:] = [0, 3]

    stands(group, break_it)
    assert "d" in concerned(group), group.given


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_who_fills_the_place_for_rounds_to_come_takes_nobody_elses(pattern):
    """c sends nonsense of the next rounds before a has begun; what b sends then still counts."""
    group = Group(pattern, "none", [1.0] * 3)
    group.links["b"].begin()
    group.links["c"].begin()
    mail, group.mail = group.mail, []
    header = next(h for s, to, h, _ in mail if (s, to, h.kind) == ("c", "a", data_pb2.CONTRIBUTION))
    for number in range(200):
        junk = data_pb2.Header()
        junk.CopyFrom(header)
        junk.contribution.round, junk.contribution.sizes[:] = 2 + number % 3, [8]
        group.mail.append(("c", "a", junk, number.to_bytes(8, "little")))
    group.deliver_all()
    assert {node for node, _ in group.warnings} == {"c"} and all("too many" in why for _, why in group.warnings)
    assert len(group.links["a"].rounds.early) <= 12
    group.mail = mail
    group.deliver_all()
    group.links["a"].begin()
    assert {key for key in group.links["a"].rounds.open.contributions if key[0] == 0} == {(0, 0), (0, 1)}
    group.deliver_all()
    assert {node for node, _ in group.warnings} == {"c"}
    group.now += 60.0  # c's own is asked for again: it had no room for itself
    for link in group.links.values():
        link.tick()
    group.deliver_all()
    assert all(link.complete for link in group.links.values())
