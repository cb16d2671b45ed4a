"""The round protocol under random orders, losses and deadlines: no divergence, nothing of the sum lost or doubled."""

import math
import random

import pytest
import torch
from header_bodies import body_of
from hypothesis import given, settings
from hypothesis import strategies as st
from round_group import NUMEL, Group

from farflung.job.tables.outer import Outer
from farflung.job.tables.robust import Robust
from farflung.proto import data_pb2

OUTERS = [Outer(), Outer(0.5), Outer(0.7, 0.9, True)]


EXPLICIT = "chunked_topk:k=512,bits=2,feedback=true"


SUMMED = ["powersgd:rank=2", "global_qsgd:bits=8", "thc:bits=6", "intsgd", "randomk:ratio=0.5,run=1"]
SUMMED += ["powersgd:rank=2,factors=16"]
CODECS = ["none", "cocktail:random=0.5,top=0.3,bits=4", "int8", EXPLICIT]


ROBUST = [Robust(), Robust("clip"), Robust("centered"), Robust("centered", 0.3)]


PATTERNS = ("publishers", "all_to_all", "two_level")


WAYS = [(pattern, codec) for pattern in PATTERNS for codec in CODECS]
WAYS += [("phases", codec) for codec in SUMMED]


@settings(max_examples=60)
@given(
    st.sampled_from(WAYS),
    st.lists(st.sampled_from([0.2, 0.25, 0.5, 1.0]), min_size=2, max_size=4),
    st.sampled_from(OUTERS),
    st.sampled_from([1, 1, 2, 3]),
    st.sampled_from(ROBUST),
    st.integers(0, 2**32),
)
def test_any_order_with_duplicates_gives_one_reference_and_keeps_the_sum(way, weights, outer, fragments, robust, seed):
    chance = random.Random(seed)
    robust = robust if way[0] in ("publishers", "all_to_all") else None
    group = Group(*way, weights, outer, fragments, dense=seed % 2, robust=robust)
    for number in range(1, 4):
        before = group.total()
        for name in chance.sample(sorted(group.links), len(group.links)):
            group.links[name].begin()
        while not all(link.complete for link in group.links.values()):
            assert group.mail, "nobody has anything to send, and the round is not complete"
            group.deliver(chance.randrange(len(group.mail)), keep=chance.random() < 0.2)
        for name in group.links:
            group.apply(name)
        sections = [link.exchange.section for link in group.links.values()]
        assert all(torch.equal(sections[0].g, other.g) for other in sections)
        assert all(torch.equal(sections[0].outer, other.outer) for other in sections)
        assert len({other.chain for other in sections}) == 1
        assert all(other.round == number for other in sections)
        assert outer.is_average == (float(group.gained.abs().max()) < 1e-5)
        torch.testing.assert_close(group.total(), before + group.gained, rtol=0, atol=5e-6)
        for section in sections:
            section.x.add_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(number)) * 0.1)


@settings(max_examples=25)
@given(st.sampled_from(WAYS), st.integers(0, 3), st.integers(0, 2**32))
def test_a_member_that_is_late_is_left_out_and_sends_its_part_later(way, late, seed):
    chance = random.Random(seed)
    group = Group(*way, [1.0, 1.0, 2.0, 0.5])
    late_name = "abcd"[late]
    for link in group.links.values():
        link.rounds.durations = [1.0] * 5  # enough rounds to have a deadline
    before = group.total()
    if any(part.publisher == late_name for part in group.links["a"].rounds.plan.parts):
        return  # a publisher's own absence is a view change, not a deadline
    for name, link in group.links.items():
        if name != late_name:
            link.begin()
    group.deliver_all()
    group.now = 2.0
    for link in group.links.values():
        link.tick()
    group.links[late_name].begin()
    while group.mail:
        group.deliver(chance.randrange(len(group.mail)))
    for name in group.links:
        assert group.links[name].complete
        results = group.links[name].rounds.open.results.values()
        assert all(late not in result.contributors for result in results)
        group.apply(name)
    sections = [link.exchange.section for link in group.links.values()]
    assert all(torch.equal(sections[0].g, other.g) for other in sections)
    # Divided by the view's weight, the absent one's part is still all in its x.
    torch.testing.assert_close(group.total(), before, rtol=0, atol=3e-6)


def test_a_lost_result_is_asked_for_again():
    group = Group("publishers", "none", [1.0, 1.0, 1.0])
    for link in group.links.values():
        link.begin()
    while group.mail:
        sender, to, header, _ = group.mail[0]
        if header.kind == data_pb2.RESULT and (sender, to) == ("a", "c"):
            group.mail.pop(0)
        else:
            group.deliver(0)
    assert not group.links["c"].complete
    group.now = 6.0
    group.links["c"].tick()
    group.deliver_all()
    assert group.links["c"].complete


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_a_member_that_is_a_round_behind_is_helped_from_the_log(pattern):
    group = Group(pattern, "none", [1.0, 1.0, 1.0])
    for link in group.links.values():
        link.begin()
    lost = []
    while group.mail:
        _, to, header, _ = group.mail[0]
        if to == "c" and header.kind == data_pb2.RESULT:
            lost.append(group.mail.pop(0))
            continue
        group.deliver(0)
    if pattern == "publishers":  # c's own part is decided and held; the others may apply once c has told
        assert lost
    for name in ("a", "b"):
        link = group.links[name]
        assert link.complete
        group.apply(name)
    group.now = 6.0
    group.links["c"].tick()
    group.deliver_all()
    assert group.links["c"].complete
    assert not group.warnings
    group.apply("c")
    assert torch.equal(group.links["c"].exchange.section.g, group.links["a"].exchange.section.g)
    assert group.links["c"].rounds.chain == group.links["a"].rounds.chain


def test_a_publisher_applies_only_what_another_member_holds():
    group = Group("publishers", "none", [1.0, 1.0])
    for link in group.links.values():
        link.begin()
    held = []
    while group.mail:
        if group.mail[0][2].kind == data_pb2.RESULT_HELD:
            held.append(group.mail.pop(0))
        else:
            group.deliver(0)
    assert not any(link.complete for link in group.links.values())
    group.mail = held
    group.deliver_all()
    assert all(link.complete for link in group.links.values())


@pytest.mark.parametrize("pattern", ["publishers", "all_to_all"])
def test_what_no_member_can_lack_is_dropped(pattern):
    group = Group(pattern, "none", [1.0, 1.0, 1.0])
    for number in (1, 2):
        for link in group.links.values():
            link.begin()
        if number == 2:  # who has sent something of this round holds those before
            group.deliver_all()
            assert not any(link.rounds.log for link in group.links.values())
        group.deliver_all()
        for name, link in group.links.items():
            group.apply(name)
            others = {part.index for part in link.rounds.plan.parts if part.publisher != name}
            assert link.rounds.log[-1].results.keys() == others  # of its own parts everybody has told it


def test_parts_longer_than_a_segment(monkeypatch):
    monkeypatch.setattr("farflung.node.rounds.protocol.payloads.SEGMENT", 10)
    for codec in ("none", "int8", "cocktail:random=0.5,top=0.5,bits=4"):
        group = Group("publishers", codec, [1.0, 1.0, 1.0])
        before = group.total()
        for link in group.links.values():
            link.begin()
        group.end_round()
        torch.testing.assert_close(group.total(), before, rtol=0, atol=3e-6)
        assert not group.warnings


def wander(pattern: str, codec: str, weights: list[float], robust: Robust, seed: int) -> None:
    """Members at their own pace, messages late, twice, out of order, results lost; then the view ends anywhere."""
    chance = random.Random(seed)
    group = Group(pattern, codec, weights, robust=None if pattern == "two_level" else robust)
    names = list(group.links)
    total, known = group.total(), {}
    share = {name: weight / math.fsum(weights) for name, weight in zip(names, weights, strict=True)}

    def begin(name: str) -> None:
        section = group.links[name].exchange.section
        step = torch.randn(NUMEL, generator=torch.Generator().manual_seed(chance.randrange(2**31))) * 0.1
        before = section.x.double()
        section.x.add_(step)
        total.add_((section.x.double() - before) * share[name])
        group.links[name].begin()

    def apply(name: str) -> None:
        group.apply(name)
        section = group.links[name].exchange.section
        first = known.setdefault(section.round, (section.g.clone(), section.chain))
        assert torch.equal(first[0], section.g) and first[1] == section.chain, "two members went apart"

    def act() -> None:
        name = chance.choice(names)
        link = group.links[name]
        if link.rounds.open is None:
            begin(name)
        elif link.complete:
            apply(name)
        elif group.mail and chance.random() < 0.9:
            index = chance.randrange(len(group.mail))
            if group.mail[index][2].kind == data_pb2.RESULT and chance.random() < 0.1:
                group.mail.pop(index)
            else:
                group.deliver(index, keep=chance.random() < 0.1)
        else:
            group.now += chance.choice([0.1, 1.0, 6.0])
            for one in group.links.values():
                one.tick()

    for _ in range(chance.randrange(20, 300)):
        act()
    # The view ends, perhaps by a death: what is in flight is gone; who is behind asks for what somebody has applied.
    dead = chance.choice([None, *names])
    survivors = [name for name in names if name != dead]
    target = max(group.links[name].rounds.applied for name in survivors)
    group.mail.clear()

    def catch_up(late: list[str], asked: list[str]) -> None:
        for _ in range(200):
            for name in late:
                link = group.links[name]
                if link.rounds.applied == target:
                    continue
                if link.rounds.open is None:
                    begin(name)
                link.is_applied_elsewhere()
                if not link.complete:
                    link.ask()
                while group.mail:
                    if group.mail[0][1] in asked:
                        group.deliver(0)
                    else:
                        group.mail.pop(0)
                if link.complete:
                    apply(name)

    catch_up(survivors, survivors)
    assert {group.links[name].rounds.applied for name in survivors} == {target}, "somebody could not be helped"
    if dead is not None:
        if group.links[dead].rounds.applied > target:
            return  # a round that it alone has applied is void
        # Had it lived it would have caught up as well: but for what is its own, nothing is lost with it.
        catch_up([dead], names)
    for link in group.links.values():
        link.rounds.open = None
        link.exchange.fold_errors()
    # What the explicit feedback of a codec or an open round holds is still in x - g: nothing is lost or doubled.
    torch.testing.assert_close(group.total(), total, rtol=0, atol=2e-5)
    assert not group.warnings


WANDERINGS = given(
    st.sampled_from([(p, c) for p in PATTERNS for c in CODECS]),
    st.lists(st.sampled_from([0.2, 0.25, 0.5, 1.0]), min_size=2, max_size=4),
    st.sampled_from(ROBUST),
    st.integers(0, 2**32),
)


@settings(max_examples=20)
@WANDERINGS
def test_members_at_their_own_pace_until_the_view_ends(way, weights, robust, seed):
    wander(*way, weights, robust, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=4000)
@WANDERINGS
def test_thousands_of_ways_to_the_end_of_a_view(way, weights, robust, seed):
    wander(*way, weights, robust, seed)


@pytest.mark.parametrize("pattern", ["publishers", "two_level"])
def test_parts_may_be_offered_one_after_the_other(pattern):
    """And nobody is asked for what this node has not begun itself."""
    whole, pieces = (Group(pattern, "int4", [1.0, 0.5, 2.0, 1.0]) for _ in range(2))
    for link in whole.links.values():
        link.begin()
    whole.end_round()
    links, first = list(pieces.links.values()), pieces.links["a"]
    first.offer(first.rounds.unoffered[-1:])
    assert {body_of(header).part for _, _, header, _ in pieces.mail} == {3}
    pieces.now = 60.0
    first.tick()
    asked = [body_of(header) for _, to, header, _ in pieces.mail[1:]]
    assert asked and {body.part for body in asked} == {3} and {to for _, to, _, _ in pieces.mail} <= set("bcd")
    for link in links[1:]:
        link.begin()
    while pieces.mail:
        pieces.deliver(0)
    assert not any(link.complete for link in links) and [part.index for part in first.rounds.unoffered] == [0, 1, 2]
    first.begin()
    pieces.end_round()
    assert not pieces.warnings
    for one, other in zip(whole.links.values(), links, strict=True):
        assert torch.equal(one.exchange.section.g, other.exchange.section.g)
